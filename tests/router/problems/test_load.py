"""Who gets a request, when many come at once and when some engines are busy."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from exaslurm.core.cell import EngineLoad
from exaslurm.registry.replica import Replica
from exaslurm.router.blocks import blocks
from exaslurm.router.reweigh import Weigher
from exaslurm.router.routes import PROXIED, TAKE_FORMS
from exaslurm.router.table import Table
from tests.tools.callers import Answer, Caller, close_all, each, request
from tests.tools.farm import FarmThread
from tests.tools.fleet import Router, wait_for

MakeFarm = Callable[..., FarmThread]
RouterOf = Callable[..., Router]
POLICIES = pytest.mark.parametrize("policy", ["affinity", "power_of_two"])


def prompt(text: object) -> bytes:
    return json.dumps({"model": "chat", "prompt": f"{text} " * 200, "max_tokens": 4}).encode()


def replicas(count: int) -> list[Replica]:
    return [
        Replica(
            id=f"r{number:04}",
            cell="c000",
            model="chat",
            served_names=("chat",),
            url=f"http://127.0.0.1:{20000 + number}",
            node=f"n{number // 12}",
            ready=True,
        )
        for number in range(count)
    ]


async def ask_all(router: Router, bodies: list[bytes], *fields: str) -> list[Answer]:
    """All at once, each over a connection of its own."""
    callers = [Caller("127.0.0.1", router.port) for _ in bodies]
    try:
        return await each(
            len(bodies),
            lambda n: callers[n].ask(request(router.key, bodies[n], "/v1/completions", *fields)),
        )
    finally:
        await close_all(callers)


@pytest.mark.usefixtures("descriptors")
def test_thousands_of_clients_of_slow_engines(make_farm: MakeFarm, router_of: RouterOf) -> None:
    """2,048 requests at once: breakers opened though every engine lived, and clients got 503.

    https://github.com/sgl-project/sglang/issues/13894
    """
    farm = make_farm(8)
    router = router_of(farm)
    bodies = [prompt(number) for number in range(2048)]
    answers = asyncio.run(ask_all(router, bodies, "X-Do: delay=2"))
    assert Counter(answer.status for answer in answers) == {200: 2048}
    assert {replica["breaker"] for replica in router.http.get("/status").json()["replicas"]} == {
        "closed"
    }
    assert max(farm.taken.values()) <= 2048 / 8 * 1.25 + 5


FORM = (
    b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nchat\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n--b--\r\n'
)
MESSAGES = [{"role": "user", "content": "x"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "x"},
    "/v1/embeddings": {"input": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 5},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/v1/rerank": {"query": "x", "documents": ["y"]},
    "/v2/rerank": {"query": "x", "documents": ["y"]},
    "/rerank": {"query": "x", "documents": ["y"]},
    "/v1/score": {"text_1": "x", "text_2": "y"},
    "/score": {"text_1": "x", "text_2": "y"},
    "/classify": {"input": "x"},
    "/pooling": {"input": "x"},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [1, 2]},
}


@POLICIES
def test_every_path_counts(make_farm: MakeFarm, router_of: RouterOf, policy: str) -> None:
    """Requests of one path were forwarded without being counted, so that one engine looked idle
    and got all of 480 streams, until it ran out of memory.

    https://github.com/vllm-project/router/issues/179
    """
    farm = make_farm(3)
    router = router_of(farm, policy=policy)

    def raw(path: str) -> bytes:
        if path in TAKE_FORMS:
            made = request(router.key, FORM, path, "X-Do: hold")
            return made.replace(b"application/json", b"multipart/form-data; boundary=b")
        body = json.dumps({"model": "chat", **BODIES.get(path, {})}).encode()
        return request(router.key, body, path, "X-Do: hold")

    async def hold() -> None:
        callers = [Caller("127.0.0.1", router.port) for _ in range(30 * len(PROXIED))]
        for number, caller in enumerate(callers):
            await caller.begin(raw(PROXIED[number % len(PROXIED)]))
        await asyncio.to_thread(wait_for, lambda: len(farm.held) == len(callers))
        page = await asyncio.to_thread(lambda: router.http.get("/status").json())
        counted = [replica["outstanding"] for replica in page["replicas"]]
        assert counted == [farm.running[number] for number in range(3)]
        assert max(counted) <= len(callers) / 3 * 1.25 + 5
        farm.do(farm.release)
        answers = [await caller.end() for caller in callers]
        await close_all(callers)
        assert {answer.status for answer in answers} == {200}

    asyncio.run(hold())
    page = router.http.get("/status").json()
    assert [replica["outstanding"] for replica in page["replicas"]] == [0, 0, 0]


@POLICIES
@pytest.mark.parametrize("same", [False, True], ids=["different prompts", "one prompt"])
def test_a_burst_is_spread(
    make_farm: MakeFarm, router_of: RouterOf, policy: str, same: bool
) -> None:
    """Load was counted only after the prompt's computation had been answered: a burst that came
    before that went to the first engine as a whole.

    https://github.com/smg-project/smg/pull/1714
    """
    farm = make_farm(8)
    router = router_of(farm, policy=policy)
    bodies = [prompt(0 if same else number) for number in range(160)]

    async def burst() -> None:
        asking = asyncio.create_task(ask_all(router, bodies, "X-Do: hold"))
        await asyncio.to_thread(wait_for, lambda: len(farm.held) == len(bodies))
        assert max(farm.taken.values()) <= 20 * 1.25 + 5
        farm.do(farm.release)
        assert {answer.status for answer in await asking} == {200}

    asyncio.run(burst())


@POLICIES
def test_equal_loads_are_spread(make_farm: MakeFarm, router_of: RouterOf, policy: str) -> None:
    """All loads stayed zero, and of equals the first one was taken each time.

    https://github.com/sgl-project/sglang/pull/15473
    """
    farm = make_farm(8)
    router = router_of(farm, policy=policy)
    for number in range(240):
        assert router.http.post("/v1/completions", content=prompt(number)).status_code == 200
    assert len(farm.taken) == 8
    assert max(farm.taken.values()) <= 2.5 * 240 / 8


def test_a_new_prompt_does_not_go_to_the_busy_one(make_farm: MakeFarm, router_of: RouterOf) -> None:
    """A prompt that no engine had was given to the one with the smallest prefix tree; an engine
    that had been so slow that its tree stayed small got all new ones on top.

    https://github.com/sgl-project/sglang/pull/14532
    """
    farm = make_farm(4)
    router = router_of(farm)

    async def run() -> None:
        # The first one knows one prompt only, and computes 40 answers to it.
        busy = asyncio.create_task(
            ask_all(router, [prompt("a")] * 40, "X-Do: hold", "X-Exaslurm-Replica: c000-r0000")
        )
        await asyncio.to_thread(wait_for, lambda: len(farm.held) == 40)
        # The others know many.
        for number in range(99):
            only = f"X-Exaslurm-Replica: c000-r000{number % 3 + 1}"
            await ask_all(router, [prompt(f"old {number}")], only)
        before = farm.taken[0]
        for number in range(100):
            answers = await ask_all(router, [prompt(f"new {number}")])
            assert answers[0].good
        assert farm.taken[0] == before
        farm.do(farm.release)
        await busy

    asyncio.run(run())


def test_affinity_stays_while_load_is_uneven(make_farm: MakeFarm, router_of: RouterOf) -> None:
    """When loads differed by more than a threshold, all affinity was given up until they were
    even again, and the hit rate of the caches fell with the load.

    https://github.com/sgl-project/sglang/pull/32195
    """
    farm = make_farm(8)
    router = router_of(farm)
    rng = random.Random(0)
    conversations = [f"{rng.random()} " * 60 for _ in range(24)]

    async def run() -> None:
        homes: dict[str, Counter[bytes]] = {text: Counter() for text in conversations}
        busy: asyncio.Task[list[Answer]] | None = None
        for turn in range(6):
            for text in conversations:
                said = text + "and then? " * 60 * turn
                (answer,) = await ask_all(router, [json.dumps({"prompt": said}).encode()])
                assert answer.good
                found = answer.head.partition(b"x-exaslurm-replica: ")[2].split(b"\r\n")[0]
                homes[text][found] += turn > 1
            if turn == 1:
                fields = ("X-Do: hold", "X-Exaslurm-Replica: c000-r0000")
                busy = asyncio.create_task(ask_all(router, [prompt("other")] * 150, *fields))
                await asyncio.to_thread(wait_for, lambda: len(farm.held) == 150)
        # The busy one's own conversations have moved, and the others stay where they are.
        at_home = sum(max(seen.values()) for seen in homes.values())
        assert at_home >= 0.9 * sum(seen.total() for seen in homes.values())
        assert busy is not None
        farm.do(farm.release)
        await busy

    asyncio.run(run())


@pytest.mark.parametrize("session", [0, 12345], ids=["prompt", "session"])
def test_long_prompts_keep_their_engine(session: int) -> None:
    """Affinity counts most where there is most to compute, and was lost there. (Among the causes
    of a hit rate that collapses.)

    https://github.com/sgl-project/sglang/pull/32195
    """
    table = Table(rng=random.Random(1))
    table.update([replace(replica, max_model_len=131072) for replica in replicas(64)])
    group = table.group("chat")
    assert group is not None
    body = prompt("a book " * 2000)
    keys = blocks(body, body.index(b'"prompt"'))

    def pick() -> str:
        found = table.pick(group, 0.0, (), keys=keys, session=session, tokens=100_000)
        assert found is not None
        target, lane = found
        assert lane.affinity is not None
        lane.affinity.sent(keys, target)
        return target.ident

    assert len({pick() for _ in range(20)}) == 1


def test_no_herd_follows_old_figures() -> None:
    """Between two looks at the engines' figures, everything ran to the one that had looked idle.

    https://github.com/llm-d/llm-d-router/issues/298
    """
    table = Table(by_prefix=False, rng=random.Random(1))
    table.update(replicas(4))
    busy = EngineLoad(running=8, waiting=0, kv_use=0.1)
    idle = EngineLoad(running=0, waiting=0, kv_use=0.0)
    table.loads({f"r{n:04}": idle if n == 0 else busy for n in range(4)}, 0.0)
    Weigher().weigh(table.groups, 0.0)
    group = table.group("chat")
    assert group is not None
    for _ in range(400):
        found = table.pick(group, 0.0, ())
        assert found is not None
        found[0].outstanding += 1
    counts = [target.outstanding for target in table.targets]
    # It gets more, by what the others had to do, and no more than that.
    assert max(counts) - min(counts) <= 8 + 6


@POLICIES
def test_the_choice_does_not_slow_down_with_the_number_of_engines(policy: str) -> None:
    """Each request looked at every engine: 850 ms at 4,000 of them, and listing 490 took 3 s.

    https://github.com/smg-project/smg/issues/1692
    """
    bodies = [prompt(number) for number in range(200)]
    keys = [blocks(body, body.index(b'"prompt"')) for body in bodies]

    def cost_s(count: int) -> float:
        table = Table(by_prefix=policy == "affinity", rng=random.Random(1))
        table.update(replicas(count))
        group = table.group("chat")
        assert group is not None

        def once() -> float:
            begin_s = time.perf_counter()
            for each_keys in keys:
                found = table.pick(group, 0.0, (), keys=each_keys)
                assert found is not None
                target, lane = found
                if lane.affinity is not None:
                    lane.affinity.sent(each_keys, target)
            return (time.perf_counter() - begin_s) / len(keys)

        return min(once() for _ in range(15))

    few_s, many_s = cost_s(8), cost_s(3072)
    assert many_s < 3 * few_s, (few_s, many_s)
    assert many_s < 100e-6


def test_pages_at_thousands_of_engines(router_of: RouterOf, make_farm: MakeFarm) -> None:
    """The same for the pages that list them all.

    https://github.com/smg-project/smg/issues/1692
    """
    farm = make_farm(1)
    router = router_of(farm)
    router.replace(*replicas(3071), farm.replica(0))
    for path in ("/status", "/metrics", "/v1/models"):
        begin_s = time.monotonic()
        assert router.http.get(path).status_code == 200
        assert time.monotonic() - begin_s < 1.0
