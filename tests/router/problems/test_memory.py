"""What a router keeps, and what it must not."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable

import pytest

from exaslurm.registry.replica import Replica
from exaslurm.router.affinity import Affinity
from exaslurm.router.blocks import blocks
from exaslurm.router.table import Target
from tests.tools.callers import SMALL, STREAM, Caller, close_all, request
from tests.tools.churn import Churn
from tests.tools.farm import EVENT, FarmThread, plain
from tests.tools.fleet import wait_for
from tests.tools.served import Served

MakeFarm = Callable[..., FarmThread]
Serve = Callable[..., Served]
MIB = 1024 * 1024


def targets(names: range) -> list[Target]:
    return [
        Target(
            Replica(
                id=f"r{number}",
                cell="c",
                model="m",
                served_names=("m",),
                url=f"http://127.0.0.1:{20000 + number}",
                node="n",
                ready=True,
            ),
            None,
        )
        for number in names
    ]


@pytest.mark.parametrize("replaced", [False, True], ids=["same engines", "engines come and go"])
def test_prompts_are_forgotten(replaced: bool) -> None:
    """Prefix trees grew with each new prompt until the router was killed: nothing was forgotten,
    or nodes that had been split were never joined again, least of all when engines went.

    https://github.com/vllm-project/production-stack/issues/687
    https://github.com/ai-dynamo/dynamo/issues/10774
    """
    count = int(os.environ.get("EXASLURM_DISTINCT_PROMPTS", "60000"))
    affinity: Affinity[Target] = Affinity(4096)
    rng = random.Random(1)
    alive = targets(range(16))
    affinity.retain(alive)

    def some(numbers: range) -> None:
        nonlocal alive
        for number in numbers:
            if replaced and number % 1000 == 0:
                alive = [*alive[1:], *targets(range(16 + number // 1000, 17 + number // 1000))]
                affinity.retain(alive)
            keys = blocks(b"%d " % number * 200, 0)
            target = affinity.choose(keys, rng) or alive[number % 16]
            affinity.sent(keys, target)

    some(range(count // 4))  # full by now
    tracemalloc.start()
    try:
        some(range(count // 4, count // 2))
        before, _ = tracemalloc.get_traced_memory()
        some(range(count // 2, count))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1 * MIB


def test_a_reader_that_stalls(make_farm: MakeFarm, serve: Serve) -> None:
    """A client that did not read let the rest of its answer pile up in memory.

    https://github.com/vllm-project/vllm/pull/56094
    """
    size = 100 * MIB
    farm = make_farm(1)
    served = serve(farm.urls)
    served.wait_ready(1)

    async def run() -> None:
        caller = Caller("127.0.0.1", served.port)
        small = await caller.ask(request("", STREAM, "/v1/completions", "X-Do: size=1000000"))
        assert small.whole
        before_mb = served.rss_mb
        answer = await caller.begin(request("", STREAM, "/v1/completions", f"X-Do: size={size}"))
        await asyncio.to_thread(wait_for, lambda: answer.arrivals)
        caller.transport.pause_reading()
        # The engine is not read either, once what lies between is full.
        seen = -1
        while seen != farm.flooded:
            seen = farm.flooded
            await asyncio.sleep(0.3)
        most_mb = served.rss_mb
        assert farm.flooded < size / 2
        assert most_mb - before_mb < 5
        caller.transport.resume_reading()
        assert (await caller.end()).whole
        assert served.rss_mb - before_mb < 5
        await close_all([caller])

    asyncio.run(run())
    assert farm.flooded >= size


@pytest.mark.parametrize("together", [True, False], ids=["one packet", "one by one"])
def test_a_reader_that_only_asks(make_farm: MakeFarm, serve: Serve, together: bool) -> None:
    """The same with one request after the other whose answers are not read.

    https://github.com/vllm-project/vllm/pull/56094
    """
    farm = make_farm(1, lambda peer: peer.answer(plain(b"x" * 900_000)))
    served = serve(farm.urls)
    served.wait_ready(1)
    raw = request("", SMALL)
    count = 100

    def settled() -> int:
        seen = -1
        while seen != (now := farm.taken.total()):
            seen = now
            time.sleep(0.4)
        return seen

    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as client:
        before_mb = served.rss_mb
        client.setblocking(False)
        sent = 0
        for piece in [raw * count] if together else [raw] * count:
            sent += client.send(piece)
            time.sleep(0 if together else 0.005)
        assert sent == count * len(raw)
        taken = settled()
        assert served.rss_mb - before_mb < 8
        assert taken < count / 2, "the rest has not been asked for yet"
        client.settimeout(10)
        got = 0
        while got < count * 900_000:
            got += len(client.recv(1 << 20))
    assert farm.taken.total() == count


def test_what_requests_leave_behind(make_farm: MakeFarm, serve: Serve) -> None:
    """Statistics of each request were kept, more so of those that failed or whose client left: 14
    kills for want of memory in 12 days. Sessions that were not closed did the same in 10 minutes.

    https://github.com/vllm-project/production-stack/issues/707
    https://github.com/vllm-project/production-stack/pull/1072
    https://github.com/BerriAI/litellm/issues/14540
    https://github.com/BerriAI/litellm/issues/12685
    https://github.com/BerriAI/litellm/issues/13891
    """
    farm = make_farm(8)
    served = serve(farm.urls)
    served.wait_ready(8)
    churn = Churn(served.port, clients=32)

    async def run() -> None:
        await churn.requests(5000)
        before = served.rss_mb, served.descriptors
        served.put(farm.urls[:-2])  # is noticed in the course of it
        await churn.requests(15000)
        wait_for(lambda: len(served.status["replicas"]) == 6, timeout_s=10)
        await churn.close()
        page = await asyncio.to_thread(lambda: served.status)
        assert page["in_flight"] == 0
        assert sum(replica["outstanding"] for replica in page["replicas"]) == 0
        assert served.rss_mb - before[0] < 6  # of each request some 400 bytes would be more
        await asyncio.to_thread(wait_for, lambda: served.descriptors < 40)

    asyncio.run(run())
    assert churn.unexpected == []
    assert churn.ended["whole"] > 10000
    assert min(churn.ended.values()) > 100, churn.ended
    assert farm.running.total() == 0


@pytest.mark.usefixtures("descriptors")
def test_thousands_of_streams_at_once(make_farm: MakeFarm, serve: Serve) -> None:
    """With more than 1,000 requests at a time the router crashed.

    https://github.com/vllm-project/production-stack/issues/448
    """
    count = 3072
    farm = make_farm(8)
    served = serve(farm.urls)
    served.wait_ready(8)
    raw = request("", STREAM, "/v1/completions", "X-Do: events=8 gap=0.5")

    async def run() -> None:
        callers = [Caller("127.0.0.1", served.port) for _ in range(count)]
        asking = asyncio.gather(*(caller.ask(raw) for caller in callers))
        await asyncio.to_thread(wait_for, lambda: farm.running.total() == count, timeout_s=20)
        answers = await asking
        assert Counter(answer.good for answer in answers) == {True: count}
        assert {answer.body.count(EVENT) for answer in answers} == {8}
        await close_all(callers)

    asyncio.run(run())
    assert served.status["in_flight"] == 0
    assert served.gateway.process.poll() is None


def test_no_slow_client_library_on_the_way() -> None:
    """httpx as the client of a proxy becomes ten times slower when many requests are under way.

    https://github.com/encode/httpx/issues/3215
    """
    program = (
        "import sys, exaslurm.router.app, exaslurm.router.protocol, exaslurm.gateway.service\n"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "uvicorn" in loaded
    assert not loaded & {"httpx", "httpcore", "requests", "urllib3", "aiohttp"}
