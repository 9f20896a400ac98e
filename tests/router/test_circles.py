"""Lists of engines that lead back to the router, and engines that hang up at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest

from exaslurm.registry.replica import Replica
from exaslurm.router.upstream import Connection
from tests.tools.dialling import Dial, dialled
from tests.tools.fleet import Router
from tests.tools.rawengine import OK, RawEngine

ASK = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}


def behind(router: Router, ident: str) -> Replica:
    """A router, as another one's replica."""
    return Replica(
        id=ident,
        cell="c000",
        model="chat",
        served_names=("chat",),
        url=router.url,
        node=ident,
        ready=True,
        state="ready",
        key=router.key,
    )


@pytest.fixture
def engine() -> Iterator[RawEngine]:
    engine = RawEngine()
    yield engine
    engine.close()


def ask(router: Router, **fields: str) -> httpx.Response:
    return router.http.post("/v1/chat/completions", json=ASK, headers=fields)


def test_a_router_that_lists_itself_ends_the_circle(make_router: Callable[..., Router]) -> None:
    router = make_router()
    router.replace(behind(router, "itself"))
    answer = ask(router)
    assert answer.status_code == 503
    assert "been here before" in answer.json()["error"]["message"]
    text = router.http.get("/metrics").text
    assert 'exaslurm_router_unserved_total{cause="circle",status="503"} 1' in text
    assert "exaslurm_router_in_flight 1\n" not in text


def test_an_engine_beside_the_circle_still_answers(
    make_router: Callable[..., Router], engine: RawEngine
) -> None:
    router = make_router()
    router.replace(behind(router, "itself"), engine.replica("c000-r0001"))
    assert {ask(router).status_code for _ in range(8)} == {200}
    assert all(b"\r\nvia: 1.1 exaslurm-" in request.lower() for request in engine.requests)


def test_names_of_other_servers_are_no_circle(
    make_router: Callable[..., Router], engine: RawEngine
) -> None:
    router = make_router()
    router.replace(engine.replica())
    engine.answer = OK
    assert ask(router, Via="1.1 nginx, 1.1 exaslurm-0123456789abcdef").status_code == 200


def test_a_connection_that_is_closed_at_once_is_a_failed_attempt(
    make_router: Callable[..., Router], engine: RawEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the connection and the first byte on it there is a moment."""
    closed: list[Connection] = []

    async def connect_and_lose(dial: Dial) -> Connection:
        connection = await dial()
        if not closed:
            closed.append(connection)
            connection.transport.abort()
        return connection

    dialled(monkeypatch, connect_and_lose)
    router = make_router()
    router.replace(engine.replica())
    first = ask(router)
    assert first.status_code == 503
    assert "closed the connection at once" in first.json()["error"]["message"]
    assert ask(router).status_code == 200
