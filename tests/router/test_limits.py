"""Limits and queues as clients meet them: a running router before simulated engines."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from exaslurm.core.limits import Limits
from exaslurm.keys.clients import add_key, change_key
from tests.tools.callers import request
from tests.tools.farm import DONE, END, STREAM_HEAD, chunk, farm_of, plain
from tests.tools.fleet import Engine, Router, engines, wait_for

Make = Callable[..., Router]

ASK = {"model": "chat", "messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 8}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with engines(("--decode-tokens-per-s", "200")) as (one,):
        yield one


class Client:
    """One who uses a key of its own. Each request has a connection of its own."""

    def __init__(self, router: Router, name: str, **options: Any) -> None:
        self.router = router
        self.name = name
        self.key = add_key(router.run_dir, name, **options)
        router.keys.refresh()

    def ask(self, **changes: Any) -> httpx.Response:
        return httpx.post(
            f"{self.router.url}/v1/chat/completions",
            json=ASK | changes,
            headers={"Authorization": f"Bearer {self.key}"},
            verify=False,
            trust_env=False,
            timeout=30,
        )


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(64) as pool:
        yield pool


def counts(router: Router) -> tuple[int, int]:
    """Requests in flight (waiting ones too), and waiting ones."""
    status = router.http.get("/status").json()
    return status["in_flight"], status["waiting"]


def idle(router: Router) -> bool:
    return counts(router) == (0, 0)


def error_of(answer: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    assert error["code"] == answer.status_code
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    return error


def left_of(refused: httpx.Response) -> int:
    """Tokens that the refusal says are left."""
    return int(error_of(refused)["message"].split(" are left")[0].rsplit(" ", 1)[1])


def test_too_many_requests_a_minute(make_router: Make, engine: Engine) -> None:
    router = make_router(engine)
    client = Client(router, "ada", requests_per_min=30)
    answers = [client.ask(max_tokens=1) for _ in range(32)]
    assert Counter(answer.status_code for answer in answers) == {200: 30, 429: 2}
    error = error_of(answers[-1])
    assert error["type"] == "RateLimitError"
    assert "the key 'ada' may make 30 requests per minute" in error["message"]
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 2
    assert Client(router, "bob").ask().status_code == 200

    time.sleep(int(answers[-1].headers["retry-after"]))  # what it was told is true
    assert client.ask().status_code == 200
    change_key(router.run_dir, "ada", requests_per_min=0)
    router.keys.refresh()
    assert all(client.ask(max_tokens=1).status_code == 200 for _ in range(5))
    assert idle(router)


def test_clients_of_openai_understand(make_router: Make, engine: Engine) -> None:
    client = Client(make_router(engine), "ada", requests_per_min=1)
    with openai.OpenAI(
        base_url=f"{client.router.url}/v1", api_key=client.key, max_retries=0
    ) as made:
        made.chat.completions.create(model="chat", messages=[{"role": "user", "content": "x"}])
        with pytest.raises(openai.RateLimitError, match="1 requests per minute") as caught:
            made.chat.completions.create(model="chat", messages=[{"role": "user", "content": "x"}])
    assert 55 <= int(caught.value.response.headers["retry-after"]) <= 60


def test_tokens_are_counted_as_the_engine_counts_them(make_router: Make, engine: Engine) -> None:
    client = Client(make_router(engine), "ada", tokens_per_min=2000)
    answer = client.ask(max_tokens=10)
    assert answer.status_code == 200
    used = answer.json()["usage"]["total_tokens"]
    # Reserved in full, given back in part: had they stayed reserved, few would pass.
    for _ in range(5):
        assert client.ask(max_tokens=10).status_code == 200
    refused = client.ask(max_tokens=1999)
    assert refused.status_code == 429
    left = left_of(refused)
    assert 2000 - 6 * used - 1 <= left <= 2000 - 6 * used + 120
    assert idle(client.router)


def test_a_stream_whose_engine_does_not_tell_is_not_free(make_router: Make) -> None:
    with farm_of(1) as farm:
        router = make_router()
        router.replace(farm.replica(0))
        client = Client(router, "ada", tokens_per_min=200)
        body = {"model": "chat", "messages": ASK["messages"], "stream": True}

        def ask(do: str) -> httpx.Response:
            return httpx.post(
                f"{router.url}/v1/chat/completions",
                json=body,
                headers={"Authorization": f"Bearer {client.key}", "X-Do": do},
                verify=False,
                trust_env=False,
            )

        assert [ask(do).status_code for do in ("events=120", "events=120 gap=0.001")] == [200] * 2
        answer = client.ask(max_tokens=150)
        assert answer.status_code == 429
        assert ": 0 are left" in error_of(answer)["message"]


def test_events_of_many_tokens_are_not_one_each(make_router: Make) -> None:
    event = chunk(b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % (b"word " * 500))
    answer = STREAM_HEAD + event + event + chunk(DONE) + END
    with farm_of(1, lambda peer: peer.answer(answer)) as farm:
        router = make_router()
        router.replace(farm.replica(0))
        client = Client(router, "ada", tokens_per_min=1000)
        assert client.ask(stream=True, stream_interval=500, max_tokens=None).status_code == 200
        refused = client.ask(max_tokens=999)
        assert refused.status_code == 429
        assert left_of(refused) < 200


def test_an_answer_read_but_for_its_end_is_not_free(make_router: Make) -> None:
    """Its end would have told how many tokens it took."""
    told = b'"usage":{"prompt_tokens":500,"total_tokens":1000,"completion_tokens":500}'
    body = b'{"choices":[{"text":"all of it"}],"logprobs":"%b",%b}' % (b"x" * 16_000_000, told)
    with farm_of(1, lambda peer: peer.answer(plain(body))) as farm:
        router = make_router()
        router.replace(farm.replica(0, max_model_len=4096))
        client = Client(router, "ada", tokens_per_min=5000)
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            sock.settimeout(10)
            sock.connect(("127.0.0.1", router.port))
            asked = json.dumps(ASK | {"max_tokens": None}).encode()
            sock.sendall(request(client.key, asked, "/v1/chat/completions"))
            assert sock.recv(8192).startswith(b"HTTP/1.1 200 OK")
        wait_for(lambda: not router.inside.active)
        refused = client.ask(max_tokens=4000)
        assert refused.status_code == 429
        left = left_of(refused)
        assert 5000 - 4096 <= left <= 5000 - 4096 + 200


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("path", ["/tokenize", "/v1/messages", "/invocations"])
@pytest.mark.parametrize("count", [-(10**9), 10**30])
def test_no_request_fills_a_key_up_again(
    make_router: Make, engine: Engine, path: str, limit: str, count: int
) -> None:
    client = Client(make_router(engine), "ada", tokens_per_min=100)
    assert client.ask(max_tokens=95).status_code == 200
    body = {"model": "chat", "prompt": "x", "messages": ASK["messages"], "max_tokens": 1}
    httpx.post(
        client.router.url + path,
        json=body | {limit: count},
        headers={"Authorization": f"Bearer {client.key}"},
        verify=False,
        trust_env=False,
    )
    assert client.ask(max_tokens=95).status_code == 429


def test_tokens_of_what_has_no_answer_text(make_router: Make, engine: Engine) -> None:
    client = Client(make_router(engine), "ada", tokens_per_min=1000)
    text = "What is counted is the prompt. " * 20
    answer = httpx.post(
        f"{client.router.url}/v1/embeddings",
        json={"model": "chat", "input": text},
        headers={"Authorization": f"Bearer {client.key}"},
        verify=False,
        trust_env=False,
    )
    used = answer.json()["usage"]["prompt_tokens"]
    assert used > 100
    message = error_of(client.ask(max_tokens=1000))["message"]
    left = int(message.split(" are left")[0].rsplit(" ", 1)[1])
    assert 1000 - used - 1 <= left <= 1000 - used + 60


def test_tokens_are_not_lost_with_a_request_that_no_engine_took(
    make_router: Make, engine: Engine
) -> None:
    gone = dataclasses.replace(engine.replica("c000-r0000"), url="http://127.0.0.1:9")
    router = make_router()
    router.replace(gone)
    client = Client(router, "ada", tokens_per_min=1000)
    assert [client.ask(max_tokens=900).status_code for _ in range(4)] == [503] * 4
    router.replace(engine.replica("c000-r0001"))
    assert client.ask(max_tokens=900).status_code == 200


def test_requests_at_a_time(make_router: Make, engine: Engine, threads: ThreadPoolExecutor) -> None:
    router = make_router(engine)
    client = Client(router, "ada", concurrency=3)
    running = [threads.submit(client.ask, max_tokens=200, ignore_eos=True) for _ in range(3)]
    wait_for(lambda: counts(router)[0] == 3)
    refused = client.ask()
    assert refused.status_code == 429
    assert "may have 3 requests at a time, and has 3" in error_of(refused)["message"]
    assert [future.result().status_code for future in running] == [200] * 3
    assert client.ask().status_code == 200
    assert idle(router)


def test_what_is_over_waits_for_its_turn(
    make_router: Make, engine: Engine, threads: ThreadPoolExecutor
) -> None:
    router = make_router(engine, limits=Limits(max_in_flight_per_replica=2))
    client = Client(router, "ada")
    most = 0
    futures = [threads.submit(client.ask) for _ in range(24)]
    while not all(future.done() for future in futures):
        most = max(most, int(engine.running))
    assert [future.result().status_code for future in futures] == [200] * 24
    assert 1 <= most <= 2
    assert idle(router)


def queue(
    router: Router, threads: ThreadPoolExecutor, clients: list[Client], order: list[str]
) -> list[Future[None]]:
    """Have each of the clients wait, one after another; ``order`` gets their names as they are
    answered."""

    def ask(client: Client) -> None:
        assert client.ask().status_code == 200
        order.append(client.name)

    futures = []
    for client in clients:
        waiting = counts(router)[1]
        futures.append(threads.submit(ask, client))
        wait_for(lambda waiting=waiting: counts(router)[1] == waiting + 1)
    return futures


@contextlib.contextmanager
def busy(router: Router) -> Iterator[None]:
    """The one engine has a long stream, which ends with the block."""
    with router.http.stream(
        "POST",
        "/v1/chat/completions",
        json=ASK | {"stream": True, "max_tokens": 3000, "ignore_eos": True},
    ) as answer:
        events = answer.iter_raw()
        next(events)
        yield  # with ``events`` alive: its end would be the stream's


def test_priority_goes_first_and_keys_take_turns(
    make_router: Make, engine: Engine, threads: ThreadPoolExecutor
) -> None:
    router = make_router(engine, limits=Limits(max_in_flight_per_replica=1))
    flood, single = Client(router, "flood"), Client(router, "single")
    urgent, idler = Client(router, "urgent", priority=5), Client(router, "idler", priority=-1)
    order: list[str] = []
    with busy(router):
        clients = [idler, flood, flood, flood, flood, single, urgent]
        futures = queue(router, threads, clients, order)
    for future in futures:
        future.result()
    assert order == ["urgent", "flood", "single", "flood", "flood", "flood", "idler"]
    assert idle(router)


def test_who_leaves_the_queue_never_reaches_an_engine(
    make_router: Make, engine: Engine, threads: ThreadPoolExecutor
) -> None:
    router = make_router(engine, limits=Limits(max_in_flight_per_replica=1))
    finished = engine.metric("vllm:request_success_total")
    with busy(router):
        leaving = threading.Event()

        def ask_and_leave() -> None:
            with (
                contextlib.suppress(httpx.HTTPError),
                httpx.Client(
                    base_url=router.url, verify=False, trust_env=False, timeout=0.3
                ) as client,
            ):
                client.post(
                    "/v1/chat/completions",
                    json=ASK,
                    headers={"Authorization": f"Bearer {router.key}"},
                )
            leaving.set()

        futures = [threads.submit(ask_and_leave) for _ in range(20)]
        wait_for(lambda: counts(router)[1] == 20, every_s=0.001)
        for future in futures:
            future.result()
        wait_for(lambda: counts(router) == (1, 0), timeout_s=1)
        last = threads.submit(Client(router, "last").ask)
        wait_for(lambda: counts(router)[1] == 1)
    assert last.result().status_code == 200
    wait_for(lambda: idle(router))
    assert engine.metric("vllm:request_success_total") <= finished + 2  # the stream, the last


def test_a_wait_ends_and_a_full_queue_says_so(
    make_router: Make, engine: Engine, threads: ThreadPoolExecutor
) -> None:
    limits = Limits(max_in_flight_per_replica=1, max_waiting=2, max_waiting_per_key=2, wait_s=1.0)
    router = make_router(engine, limits=limits)
    client = Client(router, "ada")
    with busy(router):
        started_s = time.monotonic()
        waiting = [threads.submit(client.ask) for _ in range(2)]
        wait_for(lambda: counts(router)[1] == 2)
        full = Client(router, "bob").ask()
        assert full.status_code == 503
        assert "2 of at most 2" in error_of(full)["message"]
        assert int(full.headers["retry-after"]) >= 1
        for future in waiting:
            answer = future.result()
            assert answer.status_code == 503
            assert "no engine was free within 1 s" in error_of(answer)["message"]
            assert int(answer.headers["retry-after"]) >= 1
        assert 1.0 <= time.monotonic() - started_s < 3.0
        assert counts(router) == (1, 0)
    wait_for(lambda: idle(router))
    assert client.ask().status_code == 200


def test_a_replica_that_comes_lets_in_who_waits(
    make_router: Make, engine: Engine, threads: ThreadPoolExecutor
) -> None:
    with engines(("--decode-tokens-per-s", "1000")) as (second,):
        router = make_router(engine, limits=Limits(max_in_flight_per_replica=1))
        client = Client(router, "ada")
        with busy(router):
            waiting = [threads.submit(client.ask) for _ in range(3)]
            wait_for(lambda: counts(router)[1] == 3)
            router.replace(engine.replica("c000-r0000"), second.replica("c000-r0001"))
            for future in waiting:
                assert future.result().headers["x-exaslurm-replica"] == "c000-r0001"


def test_a_model_that_is_gone_is_forgotten(make_router: Make) -> None:
    with farm_of(1) as farm:
        router = make_router()
        for name in ("one", "two"):
            router.replace(farm.replica(0, served_names=(name,)))
            body = {"model": name, "prompt": "x"}
            assert router.http.post("/v1/completions", json=body).status_code == 200
        later_s = time.monotonic() + 1000
        router.call(lambda: router.inside.admission.sweep(later_s))
        page = router.http.get("/metrics").text
        assert 'exaslurm_router_waiting{model="two"}' in page
        assert 'exaslurm_router_waiting{model="one"}' not in page
