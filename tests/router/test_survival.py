"""Engines that die, leave, refuse or cut answers short; clients that go away."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import errno
import itertools
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import openai
import pytest

from exaslurm.registry.replica import Replica
from exaslurm.router import protocol
from exaslurm.router.breaker import FIRST_WAIT_S
from exaslurm.router.upstream import Connection
from tests.tools.callers import SMALL, STREAM, request
from tests.tools.dialling import Dial, dialled
from tests.tools.farm import DONE, END, EVENT, STREAM_HEAD, Peer, chunk, farm_of
from tests.tools.farm import plain as raw_answer
from tests.tools.fleet import Engine, Router, engines, wait_for
from tests.tools.rawengine import OK, RawEngine

MakeRouter = Callable[..., Router]
BODY = {"model": "chat", "prompt": "x", "max_tokens": 4}
GOOD = OK.replace(b"\r\n", b"\r\nContent-Type: application/json\r\n", 1)


@pytest.fixture
def raw() -> Iterator[RawEngine]:
    engine = RawEngine()
    yield engine
    engine.close()


@pytest.fixture
def good() -> Iterator[RawEngine]:
    engine = RawEngine(GOOD)
    yield engine
    engine.close()


def ask(router: Router, **changes: object) -> httpx.Response:
    return router.http.post("/v1/completions", json={**BODY, **changes})


def metric(router: Router, pattern: str) -> float:
    """Sum of the router's series that match."""
    page = router.http.get("/metrics").text
    found = re.findall(rf"^exaslurm_router_{pattern} (\S+)$", page, re.MULTILINE)
    return sum(float(value) for value in found)


def breakers(router: Router) -> dict[str, str]:
    status = router.http.get("/status").json()
    return {item["id"]: item["breaker"] for item in status["replicas"]}


def test_no_plain_request_fails_when_an_engine_is_killed(make_router: MakeRouter) -> None:
    arguments = ("--decode-tokens-per-s", "200")
    with engines(arguments, arguments, arguments) as fleet:
        router = make_router(*fleet)
        answered = threading.Semaphore(0)

        def one(number: int) -> httpx.Response:
            answer = ask(router, prompt=f"request {number}")
            answered.release()
            return answer

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            futures = [pool.submit(one, number) for number in range(200)]
            for _ in range(40):
                assert answered.acquire(timeout=10)
            wait_for(lambda: fleet[0].running > 0)
            fleet[0].kill()
            answers = [future.result() for future in futures]
        assert [answer.status_code for answer in answers] == [200] * 200
        assert all(answer.json()["choices"][0]["text"] for answer in answers)
        assert metric(router, r"retries_total\{[^}]*\}") >= 1
        assert metric(router, r'outstanding\{model="chat"\}') == 0

        # It comes back at the same address, and is used again without being told.
        with contextlib.closing(Engine(*arguments, port=fleet[0].port)):
            wait_for(
                lambda: ask(router).headers["x-exaslurm-replica"] == "c000-r0000", every_s=0.05
            )


def test_a_stream_that_has_begun_ends_with_an_error_event(make_router: MakeRouter) -> None:
    with engines(("--decode-tokens-per-s", "50")) as (engine,):
        router = make_router(engine)
        with openai.OpenAI(base_url=router.url + "/v1", api_key=router.key) as client:
            stream = client.chat.completions.create(
                model="chat",
                messages=[{"role": "user", "content": "x"}],
                max_tokens=60,
                stream=True,
            )
            seen = [next(iter(stream)) for _ in range(3)]
            assert seen
            engine.kill()
            killed_s = time.monotonic()
            with pytest.raises(openai.APIError, match="c000-r0000 ended"):
                list(stream)
            assert time.monotonic() - killed_s < 1.0
        assert metric(router, r"broken_streams_total\{[^}]*\}") == 1


def test_a_stream_waiting_for_its_first_token_moves_on(make_router: MakeRouter) -> None:
    stuck = ("--prefill-tokens-per-s", "0.001")
    with engines(stuck, ("--decode-tokens-per-s", "200")) as (slow, fast):
        router = make_router(slow, fast)
        router.replace(slow.replica("c000-r0000"))
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(ask, router, stream=True)
            wait_for(lambda: slow.running == 1)
            router.replace(slow.replica("c000-r0000"), fast.replica("c000-r0001"))
            slow.kill()
            text = answer.result().text
        assert text.endswith("data: [DONE]\n\n")
        assert "error" not in text
        assert answer.result().headers["x-exaslurm-replica"] == "c000-r0001"


@pytest.mark.parametrize(("stream", "begun"), [(False, False), (True, False), (True, True)])
def test_a_client_that_leaves_stops_the_engine(
    make_router: MakeRouter, stream: bool, begun: bool
) -> None:
    slow = ("--decode-tokens-per-s", "20") if begun else ("--prefill-tokens-per-s", "0.01")
    with engines(slow) as (engine,):
        router = make_router(engine)
        body = json.dumps({**BODY, "max_tokens": 2000, "ignore_eos": True, "stream": stream})
        client = socket.create_connection(("127.0.0.1", router.port), timeout=5)
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Authorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s"
            % (router.key.encode(), len(body), body.encode())
        )
        wait_for(lambda: engine.running == 1)
        if begun:
            assert client.recv(10)
        client.close()
        wait_for(lambda: engine.running == 0, timeout_s=0.3)
        wait_for(lambda: metric(router, r'requests_total\{[^}]*status="499"\}') == 1)
        assert metric(router, r'outstanding\{model="chat"\}') == 0
        assert breakers(router) == {"c000-r0000": "closed"}


def test_an_engine_that_shuts_down_hands_new_requests_on(make_router: MakeRouter) -> None:
    drains = ("--decode-tokens-per-s", "50", "--shutdown-timeout", "20")
    with engines(drains, ("--decode-tokens-per-s", "500")) as (leaving, staying):
        router = make_router(leaving, staying)
        router.replace(leaving.replica("c000-r0000"))
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            long = pool.submit(ask, router, max_tokens=60)
            wait_for(lambda: leaving.running == 1)
            router.replace(leaving.replica("c000-r0000"), staying.replica("c000-r0001"))
            leaving.terminate()
            answers = [ask(router) for _ in range(20)]
            assert [answer.status_code for answer in answers] == [200] * 20
            assert {answer.headers["x-exaslurm-replica"] for answer in answers} == {"c000-r0001"}
            assert long.result().status_code == 200
            assert len(long.result().json()["choices"][0]["text"].split()) == 60


def chunked(*pieces: bytes, end: bool = True) -> bytes:
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return head + body + (b"0\r\n\r\n" if end else b"")


def plain(status: bytes, body: bytes) -> bytes:
    return (
        b"HTTP/1.1 %s\r\nConnection: close\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (status, len(body), body)
    )


DEAD = b'{"error":{"message":"EngineCore encountered an issue.","type":"X","code":500}}'


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{",
        b"not HTTP\r\n\r\n",
        chunked(end=False),
        chunked(b'data: {"id": ', end=False),
        chunked(b"data: " + DEAD + b"\n\n", b"data: [DONE]\n\n"),
        plain(b"503 Service Unavailable", b"{}"),
        plain(b"401 Unauthorized", b'{"error":"Unauthorized"}'),
        plain(b"500 Internal Server Error", DEAD),
        plain(b"500 Internal", b'{"error":"cannot schedule new futures after shutdown"}'),
    ],
)
@pytest.mark.parametrize("reset", [False, True])
def test_what_has_not_begun_goes_to_another_replica(
    make_router: MakeRouter, raw: RawEngine, good: RawEngine, answer: bytes, reset: bool
) -> None:
    raw.answer, raw.reset = answer, reset
    router = make_router()
    router.replace(raw.replica("c000-r0000"))
    assert ask(router).status_code >= 400 or not answer.startswith(b"HTTP/1.1 200")
    asked = len(raw.requests)
    router.replace(raw.replica("c000-r0000"), good.replica("c000-r0001"))
    # So many that the bad one is chosen often enough, although the choice is random.
    answers = [ask(router) for _ in range(40)]
    assert [got.text for got in answers if got.status_code != 200] == []
    assert {got.headers["x-exaslurm-replica"] for got in answers} == {"c000-r0001"}
    # Never the same one twice for a request, and soon not at all.
    assert len(raw.requests) - asked <= 3
    assert breakers(router)["c000-r0000"] == "open"


def test_errors_of_clients_open_no_breaker(make_router: MakeRouter, raw: RawEngine) -> None:
    router = make_router()
    router.replace(raw.replica())
    for status in (b"400 Bad Request", b"404 Not Found", b"422 Unprocessable", b"429 Too Many"):
        raw.answer = plain(status, b'{"error":{}}')
        assert [ask(router).status_code for _ in range(10)] == [int(status[:3])] * 10
    assert breakers(router) == {"c000-r0000": "closed"}
    raw.answer = GOOD
    assert ask(router).status_code == 200


def test_other_errors_of_an_engine_pass_and_count(make_router: MakeRouter, raw: RawEngine) -> None:
    router = make_router()
    router.replace(raw.replica())
    raw.answer = plain(b"500 Internal Server Error", b'{"error":{"message":"bad luck"}}')
    for _ in range(3):
        answer = ask(router)
        assert (answer.status_code, answer.content) == (500, b'{"error":{"message":"bad luck"}}')
    assert breakers(router) == {"c000-r0000": "open"}
    # All are ejected: using one is better than refusing.
    raw.answer = GOOD
    assert ask(router).status_code == 200
    assert breakers(router) == {"c000-r0000": "closed"}


def test_with_no_other_replica_the_refusal_itself_is_passed_on(
    make_router: MakeRouter, raw: RawEngine
) -> None:
    router = make_router()
    router.replace(raw.replica())
    raw.answer = plain(b"503 Service Unavailable", b'{"error":{"message":"full"}}')
    answer = ask(router)
    assert (answer.status_code, answer.content) == (503, b'{"error":{"message":"full"}}')
    raw.answer = plain(b"401 Unauthorized", b'{"error":"Unauthorized"}')
    answer = ask(router)
    assert answer.status_code == 502
    assert "c000-r0000; the last one: it answered 401" in answer.json()["error"]["message"]


def test_a_request_is_sent_to_few_replicas_however_many_fail(
    make_router: MakeRouter, raw: RawEngine
) -> None:
    raw.answer = b""
    router = make_router(max_sends=3)
    router.replace(*(raw.replica(f"c000-r{number:04}") for number in range(10)))
    assert ask(router).status_code == 502
    assert len(raw.requests) == 3


def test_dead_replicas_cost_no_attempts(make_router: MakeRouter, good: RawEngine) -> None:
    router = make_router()
    dead = [_unused_url() for _ in range(8)]
    replicas = [
        good.replica(f"c000-r{number:04}") if url is None else _at(good, url, number)
        for number, url in enumerate([*dead, None])
    ]
    router.replace(*replicas)
    assert ask(router).status_code == 200


def _unused_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


def _at(engine: RawEngine, url: str, number: int) -> Replica:
    return dataclasses.replace(engine.replica(f"c000-r{number:04}"), url=url)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        # Cut in the middle of an event: the half one is not passed on.
        (chunked(b'data: {"a":1}\n\ndata: {"b', end=False), b'data: {"a":1}\n\n'),
        # Ended in good form, but without the end that the protocol asks for.
        (chunked(b'data: {"a":1}\n\n'), b'data: {"a":1}\n\n'),
        # Cut between events, after pieces that split an event anywhere.
        (chunked(b"da", b'ta: {"a"', b":1}\n", b"\n", end=False), b'data: {"a":1}\n\n'),
    ],
)
def test_a_cut_stream_ends_in_good_form(
    make_router: MakeRouter, raw: RawEngine, answer: bytes, expected: bytes
) -> None:
    router = make_router()
    router.replace(raw.replica())
    raw.answer = answer
    got = ask(router, stream=True)
    assert got.status_code == 200
    assert got.headers["x-accel-buffering"] == "no"
    assert got.headers["cache-control"] == "no-cache"
    passed, error, done, rest = got.content.split(b"\n\n")
    assert passed + b"\n\n" == expected
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == 502
    assert (done, rest) == (b"data: [DONE]", b"")


def test_error_events_of_the_engine_pass_and_count(make_router: MakeRouter, raw: RawEngine) -> None:
    router = make_router()
    router.replace(raw.replica())
    events = b'data: {"a":1}\n\ndata: ' + DEAD + b"\n\ndata: [DONE]\n\n"
    raw.answer = chunked(events)
    for _ in range(3):
        assert ask(router, stream=True).content == events
    assert breakers(router) == {"c000-r0000": "open"}


def test_events_arrive_as_they_are_made(make_router: MakeRouter) -> None:
    with engines(("--decode-tokens-per-s", "20")) as (engine,):
        router = make_router(engine)
        arrivals: list[float] = []
        body = {**BODY, "max_tokens": 8, "stream": True}
        with router.http.stream("POST", "/v1/completions", json=body) as answer:
            arrivals += [time.monotonic() for _ in answer.iter_raw()]
    gaps = [later - earlier for earlier, later in itertools.pairwise(arrivals)]
    assert len(gaps) >= 7
    assert sorted(gaps)[len(gaps) // 2] == pytest.approx(0.05, abs=0.03)


def test_connections_are_dropped_before_the_engine_drops_them(make_router: MakeRouter) -> None:
    with engines(("--decode-tokens-per-s", "1000")) as (engine,):
        router = make_router(engine, idle_s=1.0)
        for _ in range(5):
            assert ask(router).status_code == 200
        assert _connections(engine.port) >= 1
        wait_for(lambda: _connections(engine.port) == 0, timeout_s=3)


def _connections(port: int) -> int:
    """Established connections to a port of this host."""
    with open("/proc/net/tcp", encoding="ascii") as table:
        rows = [line.split() for line in table][1:]
    return sum(row[2].endswith(f":{port:04X}") and row[3] == "01" for row in rows)


def test_a_slow_answer_is_asked_for_twice_if_that_is_wanted(make_router: MakeRouter) -> None:
    stuck = ("--prefill-tokens-per-s", "0.001")
    with engines(stuck, ("--decode-tokens-per-s", "500")) as (slow, fast):
        router = make_router(slow, fast, hedge_after_s=0.3)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(ask, router, stream=number % 2 == 0) for number in range(8)]
            answers = [future.result(timeout=10) for future in asked]
        assert [answer.status_code for answer in answers] == [200] * 8
        assert {answer.headers["x-exaslurm-replica"] for answer in answers} == {"c000-r0001"}
        assert metric(router, r'retries_total\{reason="hedge"\}') >= 1
        # Who was too slow has been told to stop, and is not to blame.
        wait_for(lambda: slow.running == 0)
        assert breakers(router) == {"c000-r0000": "closed", "c000-r0001": "closed"}
        assert metric(router, r'outstanding\{model="chat"\}') == 0


def hedged(router: Router, first: Callable[[Peer], None], second: Callable[[Peer], None]) -> str:
    """What a streamed request that goes to two engines is answered."""
    order = iter((first, second))
    with farm_of(2, lambda peer: next(order)(peer)) as farm:
        router.replace(*farm.replicas())
        answer = ask(router, stream=True)
        assert answer.status_code == 200
        wait_for(lambda: sum(farm.running.values()) == 0)
        assert sum(farm.taken.values()) == 2
    wait_for(lambda: metric(router, r'outstanding\{model="chat"\}') == 0)
    return answer.text


def words(number: str) -> bytes:
    return chunk(EVENT.replace(b"word", number.encode()) + DONE) + END


def test_a_stream_s_head_alone_is_no_answer(make_router: MakeRouter) -> None:
    def first(peer: Peer) -> None:
        peer.write(STREAM_HEAD)
        peer.later(1.0, lambda: peer.answer(words("first")))

    def second(peer: Peer) -> None:
        peer.write(STREAM_HEAD)
        peer.later(30.0, lambda: peer.answer(words("second")))

    text = hedged(make_router(hedge_after_s=0.3), first, second)
    assert "first" in text
    assert "second" not in text


def test_a_stream_that_has_begun_is_not_answered_by_another_one(make_router: MakeRouter) -> None:
    def first(peer: Peer) -> None:
        peer.write(STREAM_HEAD)
        peer.later(1.0, lambda: peer.write(chunk(EVENT)))
        peer.later(2.0, lambda: peer.answer(words("first")))

    def second(peer: Peer) -> None:
        peer.later(1.0, lambda: peer.answer(STREAM_HEAD + words("second")))

    text = hedged(make_router(hedge_after_s=0.3), first, second)
    assert text.count("[DONE]") == 1


def test_the_second_engine_s_answer_counts_though_the_first_refuses(
    make_router: MakeRouter,
) -> None:
    def first(peer: Peer) -> None:
        peer.later(1.0, lambda: peer.answer(raw_answer(b"{}", 503)))

    def second(peer: Peer) -> None:
        peer.write(STREAM_HEAD + chunk(EVENT)[:20])
        peer.later(1.5, lambda: peer.answer(chunk(EVENT)[20:] + words("second")))

    text = hedged(make_router(hedge_after_s=0.3), first, second)
    assert "word" in text
    assert "second" in text


def test_connections_end_with_their_replica(make_router: MakeRouter) -> None:
    with farm_of(2) as farm, concurrent.futures.ThreadPoolExecutor(1) as pool:
        router = make_router()
        router.replace(*farm.replicas())
        leaving = {"X-Do": "hold", "X-Exaslurm-Replica": "c000-r0001"}
        answer = pool.submit(router.http.post, "/v1/completions", json=BODY, headers=leaving)
        wait_for(lambda: farm.running[1] == 1)
        router.replace(farm.replica(0))
        assert {peer.engine for peer in farm.peers} == {1}, "what is begun goes on"
        farm.do(farm.release)
        assert answer.result().status_code == 200
        wait_for(lambda: not farm.peers, timeout_s=1)


def test_a_probe_that_streams_for_long_does_not_keep_its_replica_from_others(
    make_router: MakeRouter,
) -> None:
    with farm_of(2) as farm:
        router = make_router()
        router.replace(*farm.replicas())
        pinned = {"X-Exaslurm-Replica": "c000-r0000"}
        for _ in range(3):
            failing = {**pinned, "X-Do": "status=500"}
            router.http.post("/v1/completions", json=BODY, headers=failing)
        assert breakers(router)["c000-r0000"] == "open"
        time.sleep(FIRST_WAIT_S)
        body = {**BODY, "stream": True}
        long = {"X-Do": "events=1000 gap=0.05"}
        with router.http.stream("POST", "/v1/completions", json=body, headers=long) as answer:
            assert answer.headers["x-exaslurm-replica"] == "c000-r0000"
            assert next(answer.iter_raw())
            assert breakers(router)["c000-r0000"] == "closed"
        # One more that breaks off is one too many.
        half = {**pinned, "X-Do": "half"}
        router.http.post("/v1/completions", json=body, headers=half)
        assert breakers(router)["c000-r0000"] == "open"


def test_a_probe_that_does_not_fit_is_left_to_others(make_router: MakeRouter) -> None:
    with farm_of(2) as farm:
        router = make_router()
        router.replace(farm.replica(0, max_model_len=1000), farm.replica(1, max_model_len=100_000))
        pinned = {"X-Exaslurm-Replica": "c000-r0000", "X-Do": "status=500"}
        for _ in range(3):
            router.http.post("/v1/completions", json=BODY, headers=pinned)
        assert breakers(router)["c000-r0000"] == "open"
        time.sleep(FIRST_WAIT_S)  # from now on it may be probed
        long = {**BODY, "prompt": "word " * 4000, "max_tokens": 2000}
        for _ in range(5):
            answer = router.http.post("/v1/completions", json=long)
            assert answer.headers["x-exaslurm-replica"] == "c000-r0001"
        wait_for(lambda: ask(router).status_code == 200 and len(set(breakers(router).values())) < 2)


def pipelined(router: Router, *bodies: bytes, do: str = "") -> bytes:
    fields = (f"X-Do: {do}",) if do else ()
    return b"".join(request(router.key, body, "/v1/completions", *fields) for body in bodies)


def test_answers_keep_their_order_while_a_later_body_is_late(
    make_router: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "LINGER_S", 0.1)
    with farm_of(1) as farm:
        router = make_router(body_timeout_s=0.3)
        router.replace(farm.replica(0))
        first = pipelined(router, SMALL, do="delay=1.5")
        late = pipelined(router, SMALL)[:-10]
        with socket.create_connection(("127.0.0.1", router.port), timeout=5) as client:
            client.sendall(first + late)
            answer = b""
            while piece := client.recv(65536):
                answer += piece
        heads = re.findall(rb"HTTP/1.1 ([0-9]+) ", answer)
        assert heads == [b"200", b"408"]
        assert metric(router, r'requests_total\{[^}]*status="408"[^}]*\}') == 1


def test_the_end_of_the_router_answers_whose_turn_it_is(make_router: MakeRouter) -> None:
    with farm_of(1) as farm:
        router = make_router()
        router.replace(farm.replica(0))
        stream = pipelined(router, STREAM, do="events=1000 gap=0.05")
        with socket.create_connection(("127.0.0.1", router.port), timeout=5) as client:
            client.sendall(stream + pipelined(router, *[SMALL] * 64))
            answer = client.recv(65536)
            router.call(router.inside.cut_off)
            while piece := client.recv(65536):
                answer += piece
        assert answer.count(b"HTTP/1.1 ") == 1
        assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert b"shutting down" in answer


def test_a_client_that_reads_nothing_at_all_is_left(make_router: MakeRouter) -> None:
    with farm_of(1, lambda peer: peer.answer(raw_answer(b"x" * 900_000))) as farm:
        router = make_router(slow_client_timeout_s=1.0)
        router.replace(farm.replica(0))
        with socket.create_connection(("127.0.0.1", router.port), timeout=5) as client:
            client.sendall(pipelined(router, *[SMALL] * 40))
            wait_for(lambda: len(router.inside.connections) == 1, timeout_s=2)
            wait_for(lambda: not router.inside.connections, timeout_s=5)
        assert router.http.get("/status").json()["in_flight"] == 0


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOBUFS])
def test_a_router_without_descriptors_blames_no_engine(
    make_router: MakeRouter, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    async def fails(_: Dial) -> Connection:
        raise OSError(code, os.strerror(code))

    with farm_of(3) as farm:
        router = make_router()
        router.replace(*farm.replicas())
        with monkeypatch.context() as patch:
            dialled(patch, fails)
            for _ in range(20):
                answer = ask(router)
                assert answer.status_code == 503
                assert answer.headers["retry-after"]
                assert os.strerror(code) in answer.json()["error"]["message"]
        assert set(breakers(router).values()) == {"closed"}
        assert ask(router).status_code == 200
        assert metric(router, r"outstanding\{[^}]*\}") == 0


def test_one_connection_that_takes_long_is_not_the_end_of_its_engine(
    make_router: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = True

    async def slow(dial: Dial) -> Connection:
        if late:
            await asyncio.sleep(60)
        return await dial()

    dialled(monkeypatch, slow)
    with farm_of(1) as farm:
        router = make_router(connect_timeout_s=0.05)
        router.replace(farm.replica(0))
        for state in ("closed", "closed", "open"):
            assert ask(router).status_code == 503
            assert breakers(router) == {"c000-r0000": state}
        late = False
        wait_for(lambda: ask(router).status_code == 200 and "open" not in breakers(router).values())
