"""Engines that fail, and requests that are at fault themselves."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import time
from collections import Counter
from collections.abc import Callable

import httpx
import pytest

from exaslurm.core.limits import Limits
from exaslurm.router.budget import RetryBudget
from tests.tools.callers import SMALL, STREAM, Answer, Caller, close_all, each, request
from tests.tools.farm import DONE, END, EVENT, STREAM_HEAD, FarmThread, Peer, as_asked, chunk, plain
from tests.tools.fleet import Router, engines, wait_for
from tests.tools.served import Served

MakeFarm = Callable[..., FarmThread]
RouterOf = Callable[..., Router]
DEAD = b'{"error":{"message":"EngineCore encountered an issue.","type":"X","code":500}}'


def ask(router: Router, do: str = "", **body: object) -> httpx.Response:
    given = {"model": "chat", "prompt": "x", **body}
    return router.http.post("/v1/completions", json=given, headers={"X-Do": do})


def breakers(router: Router) -> list[str]:
    return [replica["breaker"] for replica in router.http.get("/status").json()["replicas"]]


@pytest.mark.parametrize("status", [400, 404, 409, 413, 422, 429])
def test_faults_of_clients_say_nothing_of_engines(
    make_farm: MakeFarm, router_of: RouterOf, status: int
) -> None:
    """Thirty prompts that were too long opened the breaker of every engine, and everyone got 503.

    https://github.com/sgl-project/sglang/issues/25811
    https://github.com/vllm-project/router/pull/60
    """
    farm = make_farm(2)
    router = router_of(farm)
    for stream in (False, True):
        answers = [ask(router, f"status={status}", stream=stream) for _ in range(30)]
        assert {answer.status_code for answer in answers} == {status}
        assert {answer.content for answer in answers} == {b'{"error":{"message":"as asked"}}'}
    assert farm.taken.total() == 60, "nor is it asked elsewhere"
    assert breakers(router) == ["closed", "closed"]
    assert ask(router).status_code == 200


def test_wrong_keys_say_nothing_of_engines(make_farm: MakeFarm, router_of: RouterOf) -> None:
    """The same for 401: it is the router's own answer, and no engine hears of it.

    https://github.com/vllm-project/router/pull/60
    """
    farm = make_farm(2)
    router = router_of(farm)
    body = {"model": "chat", "prompt": "x"}
    for _ in range(30):
        answer = router.stranger.post(
            "/v1/completions", json=body, headers={"Authorization": "Bearer wrong"}
        )
        assert answer.status_code == 401
    assert farm.taken.total() == 0
    assert breakers(router) == ["closed", "closed"]
    assert ask(router).status_code == 200


def test_a_dead_engine_gets_nothing_and_comes_back(
    make_farm: MakeFarm, router_of: RouterOf
) -> None:
    """Requests went on to nodes that were gone, and each of them failed.

    https://github.com/vllm-project/production-stack/issues/420
    """
    bad = True

    def behave(peer: Peer) -> None:
        if peer.engine == 0 and bad:
            peer.reset()
        else:
            as_asked(peer)

    farm = make_farm(3, behave)
    router = router_of(farm)
    for number in range(60):
        assert ask(router, prompt=f"{number}").status_code == 200
    # A few failures, and now and then a single request that tries it again.
    assert 1 <= farm.taken[0] <= 4
    bad = False
    before = farm.taken[0]

    def used_again() -> bool:
        assert ask(router, prompt=str(time.monotonic())).status_code == 200
        return farm.taken[0] >= before + 5

    wait_for(used_again, timeout_s=8)
    assert breakers(router) == ["closed"] * 3


@pytest.mark.parametrize(
    "how", ["500 of a dead core", "error in place of a stream", "hung up", "503"]
)
def test_health_alone_does_not_tell(
    make_farm: MakeFarm, serve: Callable[..., Served], how: str
) -> None:
    """The engine's core was dead, ``/health`` went on answering 200, and requests went on to it.

    https://github.com/opendatalab/MinerU/issues/5171
    https://github.com/vllm-project/vllm/issues/11996
    """
    stream = how == "error in place of a stream"
    answers = {
        "500 of a dead core": plain(DEAD, 500),
        "503": plain(b"{}", 503),
        "error in place of a stream": STREAM_HEAD + chunk(b"data: " + DEAD + b"\n\n") + END,
    }

    def behave(peer: Peer) -> None:
        if peer.engine != 0:
            as_asked(peer)
        elif how in answers:
            peer.answer(answers[how])
        else:
            peer.close()

    farm = make_farm(2, behave)
    served = serve(farm.urls)
    served.wait_ready(2)
    body = {"model": "chat", "prompt": "x", "stream": stream}
    fields = {"X-Do": "events=2"} if stream else {}
    begin_s = time.monotonic()
    count = 0
    # Its checks go on meanwhile, and find it well each time.
    while time.monotonic() < begin_s + 2.5:
        given = {**body, "prompt": f"{count}"}
        answer = served.http.post("/v1/completions", json=given, headers=fields)
        assert answer.status_code == 200, answer.text
        assert "error" not in answer.text
        count += 1
        time.sleep(0.005)
    assert count > 100
    # Three failures, then one probe after one second and one after two more.
    assert farm.taken[0] <= 5
    states = {replica["id"]: replica["breaker"] for replica in served.status["replicas"]}
    assert states[farm.urls[0].removeprefix("http://")] == "open"
    assert all(replica["takes_requests"] for replica in served.status["replicas"])


def test_a_retry_goes_elsewhere(make_farm: MakeFarm, router_of: RouterOf) -> None:
    """Affinity chose the dead engine for each of five attempts, and the client got a 500.

    https://github.com/NVIDIA-NeMo/RL/pull/3613
    """
    dead: set[int] = set()

    def behave(peer: Peer) -> None:
        if peer.engine in dead:
            peer.reset()
        else:
            as_asked(peer)

    farm = make_farm(4, behave)
    router = router_of(farm)
    session = {"X-Session-Id": "one conversation"}
    body = {"model": "chat", "prompt": "x"}
    homes = Counter[str]()
    for _ in range(20):
        answer = router.http.post("/v1/completions", json=body, headers=session)
        homes[answer.headers["x-exaslurm-replica"]] += 1
    assert len(homes) == 1, "a session stays where it is"
    (home,) = homes
    dead.add(int(home[-4:]))
    before = farm.taken.total()
    answer = router.http.post("/v1/completions", json=body, headers=session)
    assert answer.status_code == 200
    assert answer.headers["x-exaslurm-replica"] != home
    assert farm.taken.total() == before + 2


def test_slow_is_not_lost(make_farm: MakeFarm, router_of: RouterOf) -> None:
    """A time-out was answered by sending the same request again, and the work of engines that were
    only slow doubled and tripled.

    https://github.com/vectorize-io/hindsight/issues/1567
    """
    farm = make_farm(3)
    router = router_of(farm, first_byte_timeout_s=0.5)
    for _ in range(5):
        answer = ask(router, "hold")
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == 504
    assert farm.taken.total() == 5
    wait_for(lambda: farm.aborted == 5, timeout_s=1)


def test_retries_are_a_share_of_the_requests(make_farm: MakeFarm, router_of: RouterOf) -> None:
    """The same where everything fails: a storm of retries must not follow.

    https://github.com/vectorize-io/hindsight/issues/1567
    """
    farm = make_farm(4, Peer.reset)
    router = router_of(farm)
    router.inside.budget = RetryBudget(reserve=20, per_s=0)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: ask(router, prompt=f"{n}"), range(400)))
    assert {answer.status_code for answer in answers} == {502}
    assert farm.taken.total() <= 400 * 1.2 + 20 + 8


@pytest.mark.parametrize("how", ["half", "error", "refused"])
def test_streams_that_fail_give_back_their_places(
    make_farm: MakeFarm, router_of: RouterOf, how: str
) -> None:
    """Each stream that ended with an error kept its place in the pool, until all places were taken
    and every request waited for ever.

    https://github.com/LiveBench/LiveBench/pull/523
    """
    count = int(os.environ.get("EXASLURM_ERROR_STREAMS", "1000"))
    error = STREAM_HEAD + chunk(EVENT) + chunk(b"data: " + DEAD + b"\n\n") + chunk(DONE) + END

    def behave(peer: Peer) -> None:
        if how == "error" and b"x-bad" in peer.fields:
            peer.answer(error)
        else:
            as_asked(peer)

    farm = make_farm(4, behave)
    router = router_of(farm, limits=Limits(max_in_flight=16, max_waiting=64, wait_s=10))
    do = {"half": "X-Do: half", "error": "X-Bad: 1", "refused": "X-Do: status=500"}[how]
    raw = request(router.key, STREAM, "/v1/completions", do)
    good = request(router.key, STREAM, "/v1/completions", "X-Do: events=3")

    async def run() -> None:
        callers = [Caller("127.0.0.1", router.port) for _ in range(32)]

        async def many(number: int) -> None:
            for _ in range(count // len(callers)):
                answer = await callers[number].ask(raw)
                assert answer.whole
                assert answer.status in (200, 500)
                assert b'"error"' in answer.body

        await each(len(callers), many)
        answers = await each(len(callers), lambda number: callers[number].ask(good))
        assert all(answer.good for answer in answers)
        await close_all(callers)

    asyncio.run(run())
    page = router.http.get("/status").json()
    assert (page["in_flight"], page["waiting"]) == (0, 0)
    assert [replica["outstanding"] for replica in page["replicas"]] == [0] * 4
    assert farm.running.total() == 0


def test_no_request_meets_a_connection_that_closes(
    make_farm: MakeFarm, make_router: Callable[..., Router]
) -> None:
    """A pooled connection was used again just when the engine, whose server (uvicorn) ends idle
    ones after 5 s, closed it: the request was lost.

    https://github.com/llm-d/llm-d/pull/1564
    https://github.com/ThunderAgent-org/ThunderAgent/pull/35
    https://github.com/vllm-project/vllm/pull/41567
    """
    answered: dict[Peer, float] = {}

    def crossing(peer: Peer) -> None:
        """The moment is short in which a request and the end of its connection cross; here it is
        half a second."""
        now_s = time.monotonic()
        if now_s - answered.get(peer, now_s) > 4.5:
            peer.reset()
        else:
            as_asked(peer)
        answered[peer] = now_s

    farm = make_farm(1, crossing)
    with engines(("--decode-tokens-per-s", "1000")) as (engine,):
        router = make_router()
        # Each engine under many names: each has a pool of its own. A request that names its
        # replica is never sent elsewhere, so that no retry hides a loss.
        idles_s = [3.0 + 0.05 * step for step in range(61)]
        names = range(len(idles_s))
        router.replace(
            *(engine.replica(f"uvicorn{number}") for number in names),
            *(farm.replica(0, id=f"crossing{number}") for number in names),
        )

        async def one(kind: str, number: int) -> list[int]:
            pinned = f"X-Exaslurm-Replica: {kind}{number}"
            raw = request(router.key, SMALL, "/v1/completions", pinned)

            async def two() -> list[Answer]:
                # By new connections: clients' are not what is idle here.
                callers = [Caller("127.0.0.1", router.port) for _ in range(2)]
                answers = await each(2, lambda n: callers[n].ask(raw))
                await close_all(callers)
                return answers

            await asyncio.sleep(number * 0.02)  # not all at once
            await two()
            await asyncio.sleep(idles_s[number])
            answers = await two()
            return [answer.status for answer in answers]

        async def run() -> None:
            for found in await asyncio.gather(
                each(len(idles_s), lambda number: one("uvicorn", number)),
                each(len(idles_s), lambda number: one("crossing", number)),
            ):
                lost = dict(zip(idles_s, found, strict=True))
                assert {status for statuses in found for status in statuses} == {200}, lost

        asyncio.run(run())
        # What met one would have been sent again.
        page = router.http.get("/metrics").text
        assert "exaslurm_router_failed_attempts_total{" not in page
