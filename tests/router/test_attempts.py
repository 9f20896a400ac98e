"""Where an attempt goes, and what it says of its replica: closing connections, queues, hedges."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import re
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from exaslurm.core.canary import Canary
from exaslurm.core.limits import Limits
from exaslurm.router.heads import AnswerHead, Memory
from exaslurm.router.outbox import Outbox
from exaslurm.router.upstream import Connection, Endpoint, Loss
from tests.tools.callers import SMALL, request
from tests.tools.farm import Peer, farm_of, plain
from tests.tools.fleet import Router, wait_for

MakeRouter = Callable[..., Router]
BODY = {"model": "chat", "prompt": "x", "max_tokens": 4}


def ask(router: Router, do: str = "", **changes: object) -> httpx.Response:
    fields = {"X-Do": do} if do else {}
    return router.http.post("/v1/completions", json={**BODY, **changes}, headers=fields)


def metric(router: Router, pattern: str) -> float:
    page = router.http.get("/metrics").text
    found = re.findall(rf"^exaslurm_router_{pattern} (\S+)$", page, re.MULTILINE)
    return sum(float(value) for value in found)


def closes_unsaid(peer: Peer) -> None:
    """RFC 9112, 9.5: an engine may close a connection at any time."""
    peer.answer(plain())
    peer.close()


@pytest.mark.parametrize("count", [1, 3])
def test_a_connection_that_was_closing_costs_no_request(
    make_router: MakeRouter, count: int
) -> None:
    with farm_of(count, closes_unsaid) as farm, concurrent.futures.ThreadPoolExecutor(16) as pool:
        router = make_router()
        router.replace(*farm.replicas())
        statuses = Counter(pool.map(lambda _: ask(router).status_code, range(800)))
        assert statuses == {200: 800}
        assert farm.taken.total() == 800, "what was not taken is sent again, nothing else"
        assert metric(router, "ejections_total") == 0, "it says nothing of its replica"
        assert metric(router, r'outstanding\{model="chat"\}') == 0


def test_what_ends_engines_is_not_sent_to_all_of_them(make_router: MakeRouter) -> None:
    """Whether it has begun is not known: such a connection counts as one that had the request."""
    with farm_of(8) as farm:
        router = make_router()
        router.replace(*farm.replicas())
        for number in range(8):
            fields = {"X-Exaslurm-Replica": f"c000-r{number:04}"}
            router.http.post("/v1/completions", json=BODY, headers=fields)
        before = farm.taken.total()
        assert ask(router, "reset").status_code == 502
        assert farm.taken.total() - before == 3


def test_a_reset_is_no_end_of_an_answer(make_router: MakeRouter) -> None:
    """Of one without a length, half passed as the whole."""

    def behave(peer: Peer) -> None:
        if peer.engine == 1:
            peer.answer(plain(b'{"whole": 1}'))
            return
        peer.write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{"half":')
        peer.later(0.2, peer.reset)

    with farm_of(2, behave) as farm:
        router = make_router()
        router.replace(*farm.replicas())
        answers = [ask(router, prompt=f"{number}") for number in range(8)]
        assert [answer.content for answer in answers] == [b'{"whole": 1}'] * 8
        assert farm.taken[0] > 0


def test_what_waited_goes_to_a_replica_that_is_still_there(make_router: MakeRouter) -> None:
    with farm_of(2) as farm, concurrent.futures.ThreadPoolExecutor(3) as pool:
        router = make_router(limits=Limits(max_in_flight_per_replica=1))
        router.replace(farm.replica(0))
        answers = [pool.submit(ask, router, "hold")]
        wait_for(lambda: farm.held)
        answers += [pool.submit(ask, router) for _ in range(2)]
        wait_for(lambda: router.http.get("/status").json()["waiting"] == 2)
        router.replace()  # for a moment nobody serves this name
        router.replace(farm.replica(1))
        farm.do(farm.release)
        assert [answer.result().status_code for answer in answers] == [200] * 3
        assert farm.taken == {0: 1, 1: 2}


def test_what_waited_for_one_replica_does_not_go_to_it_when_it_has_left(
    make_router: MakeRouter,
) -> None:
    with farm_of(2) as farm, concurrent.futures.ThreadPoolExecutor(2) as pool:
        router = make_router(limits=Limits(max_in_flight_per_replica=1))
        router.replace(farm.replica(0))
        first = pool.submit(ask, router, "hold")
        wait_for(lambda: farm.held)
        fields = {"X-Exaslurm-Replica": "c000-r0000"}
        second = pool.submit(router.http.post, "/v1/completions", json=BODY, headers=fields)
        wait_for(lambda: router.http.get("/status").json()["waiting"] == 1)
        router.replace(farm.replica(1))
        farm.do(farm.release)
        assert first.result().status_code == 200
        assert second.result().status_code == 503
        assert farm.taken == {0: 1}


def first_and_second(
    first: Callable[[Peer], None], second: Callable[[Peer], None]
) -> Callable[[Peer], None]:
    order = iter((first, second))
    return lambda peer: next(order)(peer)


def test_what_the_second_replica_cannot_do_the_first_one_may(make_router: MakeRouter) -> None:
    too_long = plain(b'{"error":{"message":"maximum context length is 2048 tokens"}}', 400)
    behave = first_and_second(
        lambda peer: peer.later(1.0, lambda: peer.answer(plain())),
        lambda peer: peer.answer(too_long),
    )
    with farm_of(2, behave) as farm:
        router = make_router(hedge_after_s=0.2)
        router.replace(*farm.replicas())
        assert ask(router).status_code == 200
        assert farm.taken == {0: 1, 1: 1}
        assert metric(router, r'outstanding\{model="chat"\}') == 0


def test_a_hedge_goes_where_the_request_fits(make_router: MakeRouter) -> None:
    slow = first_and_second(
        lambda peer: peer.later(1.0, lambda: peer.answer(plain())),
        lambda peer: peer.answer(plain(b"{}")),
    )
    with farm_of(2, slow) as farm:
        router = make_router(hedge_after_s=0.2)
        router.replace(farm.replica(0, max_model_len=32768), farm.replica(1, max_model_len=2048))
        answer = ask(router, prompt="word " * 2000, max_tokens=5000)
        assert answer.headers["x-exaslurm-replica"] == "c000-r0000"
        assert farm.taken[1] == 0


def test_an_answer_counts_for_the_version_that_gave_it(make_router: MakeRouter) -> None:
    behave = first_and_second(
        lambda peer: peer.later(30.0, lambda: peer.answer(plain())),
        lambda peer: peer.answer(plain()),
    )
    with farm_of(2, behave) as farm:
        router = make_router(
            hedge_after_s=0.2, canary=Canary(weights={"chat": {"v1": 1.0, "v2": 0.0}})
        )
        router.replace(farm.replica(0, version="v1"), farm.replica(1, version="v2"))
        # Pinned requests are not sent twice; the share alone lets the first attempt be v1's.
        assert ask(router).status_code == 200
        answered = "v2" if farm.taken[1] else "v1"
        assert metric(router, rf'requests_total\{{[^}}]*version="{answered}"\}}') == 1
        assert metric(router, r"requests_total\{[^}]*\}") == 1


def test_a_fault_of_the_router_leaves_nothing_counted(make_router: MakeRouter) -> None:
    with farm_of(1) as farm, concurrent.futures.ThreadPoolExecutor(1) as pool:
        router = make_router(limits=Limits(max_in_flight_per_replica=1))
        router.replace(farm.replica(0, engine_model="\ud800"))  # cannot be written into a body
        for _ in range(3):
            assert ask(router).status_code == 500
        assert metric(router, r'outstanding\{model="chat"\}') == 0
        # Nor does it cost the one whose end lets the next one in.
        router.replace(farm.replica(0))
        first = pool.submit(ask, router, "hold")
        wait_for(lambda: farm.held)
        with socket.create_connection(("127.0.0.1", router.port), timeout=5) as client:
            client.sendall(request(router.key, SMALL))
            wait_for(lambda: router.http.get("/status").json()["waiting"] == 1)
            router.replace(farm.replica(0, engine_model="\ud800"))
            farm.do(farm.release)
            assert first.result().status_code == 200
            assert client.recv(65536).startswith(b"HTTP/1.1 500 ")
        assert router.http.get("/status").json()["in_flight"] == 0


def test_a_client_that_leaves_with_more_requests_behind_stops_the_engine(
    make_router: MakeRouter,
) -> None:
    with farm_of(1) as farm:
        router = make_router()
        router.replace(*farm.replicas())
        with socket.create_connection(("127.0.0.1", router.port), timeout=5) as client:
            client.sendall(request(router.key, SMALL, "/v1/completions", "X-Do: hold") * 3)
            wait_for(lambda: farm.held)
        wait_for(lambda: farm.aborted == 1, timeout_s=1)
        assert farm.taken.total() == 1
        wait_for(lambda: router.http.get("/status").json()["in_flight"] == 0)


def test_what_is_read_before_its_turn_is_bounded(make_router: MakeRouter) -> None:
    with farm_of(1) as farm:
        router = make_router()
        router.replace(*farm.replicas())
        with socket.create_connection(("127.0.0.1", router.port), timeout=5) as client:
            client.sendall(request(router.key, SMALL, "/v1/completions", "X-Do: hold"))
            wait_for(lambda: farm.held)
            client.settimeout(0.5)
            large = request(router.key, b" " * 16_000_000)
            with contextlib.suppress(TimeoutError):
                client.sendall(large)
            held = [exchange.bytes_in for exchange in router.inside.active]
            assert 0 < max(held) < 2_000_000, "the rest waits in the kernel"


def test_an_idle_connection_gets_its_time_at_a_hand_over(router: Router) -> None:
    with socket.create_connection(("127.0.0.1", router.port), timeout=5) as client:
        client.sendall(request(router.key, SMALL))
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
        (connection,) = [
            one
            for one in router.inside.connections
            if one.transport.get_extra_info("peername")[1] == client.getsockname()[1]
        ]
        closing: list[bool] = []

        def leave() -> None:
            connection._waits_since_s -= 60.0  # however long it was idle
            connection.leave()
            connection.sweep(router.inside.now_s)
            closing.append(connection.transport.is_closing())

        router.call(leave)
        assert closing == [False]


class Wire:
    """A connection to an engine, as far as the router's side of it goes."""

    def __init__(self) -> None:
        self.written: list[Any] = []
        self.aborted = False

    def writelines(self, parts: object) -> None:
        self.written.append(parts)

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def connection(self) -> Connection:
        connection = Connection(Endpoint("http://127.0.0.1:1", None), 2000, Memory())
        connection.transport = self  # type: ignore[assignment]
        return connection


def test_a_long_head_has_the_time_of_a_long_body() -> None:
    """An engine that does not read for a while must not lose it (TCP_USER_TIMEOUT)."""

    async def sent(head: bytes, body: bytes) -> list[Any]:
        wire = Wire()
        outbox = Outbox()
        wire.connection().send(None, head, body, outbox)  # type: ignore[arg-type]
        outbox.flush()
        return wire.written

    small = asyncio.run(sent(b"head", b"body"))
    assert small == [b"headbody"]
    (large,) = asyncio.run(sent(b"h" * 100_000, b"body"))
    assert large == (b"h" * 100_000, b"body")


class Asking:
    """Who sent a request. ``heard``: what came of it."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def answered(self, _: Connection, head: AnswerHead, body: bytes) -> bool:
        self.heard.append((head.status, body))
        return True

    def received(self, connection: Connection, _: bytes) -> None:
        assert connection.head is not None
        self.heard.append((connection.head.status, connection.body()))

    def lost(self, _: str, loss: Loss) -> None:
        self.heard.append(loss)


@pytest.mark.parametrize("leaves", [False, True], ids=["it waits", "it has left"])
def test_what_comes_before_a_request_has_left_is_no_answer_to_it(leaves: bool) -> None:
    """An engine that sent more than it had announced answered the next client with that."""
    secret = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nsecret"

    async def ask() -> tuple[Asking, Wire]:
        asking, wire = Asking(), Wire()
        outbox = Outbox()
        connection = wire.connection()
        connection.send(asking, b"head", b"body", outbox)
        if leaves:
            outbox.flush()
        connection.data_received(secret)
        outbox.flush()
        return asking, wire

    asking, wire = asyncio.run(ask())
    assert wire.aborted is not leaves
    assert wire.written == ([b"headbody"] if leaves else [])
    assert asking.heard == ([(200, b"secret")] if leaves else [Loss.STALE])


def test_requests_go_where_their_answers_have_room(make_router: MakeRouter) -> None:
    with farm_of(2) as farm:
        router = make_router()
        router.replace(farm.replica(0, max_model_len=2048), farm.replica(1, max_model_len=32768))
        for number in range(12):
            assert ask(router, prompt=f"{number}", max_tokens=5000).status_code == 200
        assert farm.taken == {1: 12}, "a short prompt, a long answer"
        for number in range(12):
            ask(router, prompt=f"{number} " + "word " * 4000, max_tokens=None)
        assert farm.taken == {1: 24}, "a text that is most likely too long"
        for number in range(24):
            ask(router, prompt=f"{number}", max_tokens=100)
        assert farm.taken[0] > 0, "what fits both goes to both"


def test_of_pictures_the_length_tells_nothing(make_router: MakeRouter) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 200_000}}
    with farm_of(2) as farm:
        router = make_router()
        router.replace(farm.replica(0, max_model_len=2048), farm.replica(1, max_model_len=100_000))
        for number in range(24):
            content = [{"type": "text", "text": f"{number}"}, picture]
            body = {"model": "chat", "messages": [{"role": "user", "content": content}]}
            assert router.http.post("/v1/chat/completions", json=body).status_code == 200
        assert farm.taken[0] > 0
