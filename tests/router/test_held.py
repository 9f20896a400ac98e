"""Requests for a model without a replica wait for one, where one is started for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from exaslurm.core.limits import Limits
from exaslurm.router.errors import RequestError
from exaslurm.router.held import Held
from tests.tools.fleet import Engine, Router, wait_for

NAMES = {"chat": "chat", "chat:base": "chat"}
BODY = {"model": "chat", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


class Request:
    def __init__(self, model: str = "m") -> None:
        self.model = model
        self.is_awake = False
        self.error: RequestError | None = None

    def woken(self) -> None:
        self.is_awake = True

    def refused(self, error: RequestError) -> None:
        self.error = error


class TestHeld:
    def test_those_that_wait_for_a_name_go_on_when_it_is_served(self) -> None:
        held = Held(Limits())
        mine, other = Request("a"), Request("b")
        held.hold(mine)
        held.hold(other)
        assert held.counts() == {"a": 1, "b": 1}
        held.wake("a")
        assert (mine.is_awake, other.is_awake) == (True, False)
        assert held.counts() == {"b": 1}

    def test_too_many_are_refused(self) -> None:
        held = Held(Limits(max_waiting=1))
        held.hold(Request())
        with pytest.raises(RequestError, match="one is started, and 1 requests wait") as caught:
            held.hold(Request())
        assert caught.value.status == 503
        assert caught.value.cause == "wake_full"
        assert int(caught.value.headers["Retry-After"]) > 0

    def test_a_wait_has_an_end(self) -> None:
        now = [0.0]
        held = Held(Limits(wake_s=30), lambda: now[0])
        first, second = Request(), Request()
        held.hold(first)
        now[0] = 10.0
        held.hold(second)
        held.sweep(29.0)
        assert first.error is None
        held.sweep(30.0)
        assert first.error is not None
        assert "no replica of 'm' came up within 30 s; try again in" in first.error.message
        assert "Retry-After" in first.error.headers
        assert second.error is None
        held.discard(second)
        held.sweep(1000.0)
        assert second.error is None


@pytest.fixture
def asleep(make_router: Callable[..., Router]) -> Router:
    """A router that knows a model of which nothing runs."""
    router = make_router(limits=Limits(wake_s=60))
    router.call(lambda: router.inside.may_wake(NAMES))
    wait_for(lambda: router.inside.table.group("chat") is not None)
    return router


def ask(router: Router) -> tuple[threading.Thread, list[httpx.Response]]:
    answers: list[httpx.Response] = []
    thread = threading.Thread(
        target=lambda: answers.append(router.http.post("/v1/chat/completions", json=BODY))
    )
    thread.start()
    return thread, answers


def held(router: Router) -> Any:
    return router.inside.held_counts


def test_its_names_are_known_though_nothing_runs(asleep: Router) -> None:
    page = asleep.http.get("/v1/models").json()
    assert [card["id"] for card in page["data"]] == ["chat", "chat:base"]
    assert page["data"][0]["root"] == "chat"
    assert asleep.stranger.get("/ready").status_code == 200
    models = asleep.http.get("/status").json()["models"]
    assert models[0]["asleep"] is True
    assert asleep.http.post("/v1/chat/completions", json={**BODY, "model": "x"}).status_code == 404


def test_a_request_waits_and_is_answered_when_a_replica_serves(
    asleep: Router, fast_engines: list[Engine]
) -> None:
    thread, answers = ask(asleep)
    wait_for(lambda: held(asleep) == {"chat": 1})
    assert 'exaslurm_router_held{model="chat"} 1' in asleep.http.get("/metrics").text
    asleep.replace(fast_engines[0].replica("c000-r0000"))
    thread.join(20)
    assert answers[0].status_code == 200
    wait_for(lambda: not held(asleep))


def test_one_that_does_not_serve_yet_wakes_nobody(
    asleep: Router, fast_engines: list[Engine]
) -> None:
    from dataclasses import replace

    thread, answers = ask(asleep)
    wait_for(lambda: held(asleep) == {"chat": 1})
    replica = fast_engines[0].replica("c000-r0000")
    asleep.replace(replace(replica, ready=False, state="loading"))
    assert not answers
    assert asleep.http.get("/status").json()["models"][0]["held"] == 1
    asleep.replace(replica)
    thread.join(20)
    assert answers[0].status_code == 200


def test_who_leaves_is_not_held(asleep: Router) -> None:
    with pytest.raises(httpx.ReadTimeout):
        asleep.http.post("/v1/chat/completions", json=BODY, timeout=0.5)
    wait_for(lambda: not asleep.inside.held.counts())


def test_where_the_last_replica_has_just_gone_another_one_is_waited_for(
    asleep: Router, fast_engines: list[Engine]
) -> None:
    """It is gone before the router has heard of it: the connection is refused."""
    from dataclasses import replace

    gone = replace(fast_engines[0].replica("c000-r0000"), url="http://127.0.0.1:9")
    asleep.replace(gone)
    asleep.call(lambda: None)
    asleep.replace(replace(gone, draining=True, state="draining"))
    thread, answers = ask(asleep)
    wait_for(lambda: held(asleep) == {"chat": 1})
    asleep.replace(fast_engines[1].replica("c000-r0001"))
    thread.join(20)
    assert answers[0].status_code == 200


def test_other_models_are_refused_as_ever(
    make_router: Callable[..., Router], fast_engines: list[Engine]
) -> None:
    from dataclasses import replace

    replica = replace(fast_engines[0].replica("c000-r0000"), ready=False, state="loading")
    router = make_router()
    router.replace(replica)
    assert router.http.post("/v1/chat/completions", json=BODY).status_code == 503
