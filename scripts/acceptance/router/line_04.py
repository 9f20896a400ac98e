"""Memory: at full size, over very many requests, and with clients that do not read.

EXASLURM_REQUESTS (200000): how many requests the long part makes; 1000000 takes about 10 minutes.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from acceptance.lab import ROOT, until
from acceptance.router.kit import RouterProcess
from acceptance.runner import Line, LineFailed
from exaslurm.registry.replica import Replica
from exaslurm.router.affinity import Affinity
from exaslurm.router.blocks import blocks
from exaslurm.router.table import Target
from tests.tools.callers import STREAM, Caller, close_all, request
from tests.tools.churn import Churn
from tests.tools.farm import FarmThread, farm_of
from tests.tools.fleet import wait_for

TITLE = "memory of a router: 3,072 engines, many requests, stalled readers, many prompts"

ENGINES = 3072
WAITING = 1024
PROMPTS = 1_000_000
MB = 1_000_000


def run(line: Line) -> None:
    for number, part in enumerate((full_size, stalled_reader, many_requests, many_prompts)):
        with tempfile.TemporaryDirectory(prefix=f"exr{number}") as folder:
            part(line, Path(folder))


def full_size(line: Line, folder: Path) -> None:
    """3,072 engines, each checked and with figures; 1,024 requests that wait for their answers."""
    urls = farm_process(line, folder, ENGINES)
    router = RouterProcess(line, folder, urls)
    router.wait_ready(ENGINES, timeout_s=120)
    line.note(f"{router.rss_mb:.1f} MB with {ENGINES} engines, before any request")

    async def wait() -> float:
        callers = [Caller("127.0.0.1", router.port) for _ in range(WAITING)]
        for number, caller in enumerate(callers):
            body = b'{"model":"chat","prompt":"%d%b"}' % (number, b" word" * 200)
            await caller.begin(request(router.key, body, "/v1/completions", "X-Do: hold"))
            if number % 64 == 63:
                await asyncio.sleep(0.02)
        await asyncio.to_thread(
            wait_for, lambda: router.status["in_flight"] == WAITING, timeout_s=30
        )
        used_mb = router.rss_mb
        await close_all(callers)
        return used_mb

    used_mb = asyncio.run(wait())
    line.at_most(f"memory with {ENGINES} engines and {WAITING} waiting requests", used_mb, 80, "MB")
    wait_for(lambda: router.status["in_flight"] == 0)
    router.close()


def farm_process(line: Line, folder: Path, count: int) -> list[str]:
    """Engines on unix sockets, in a process of their own."""
    words = ("--engines", str(count), "--unix", str(folder))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.tools.farm", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )

    def end() -> None:
        process.kill()
        process.wait(timeout=10)

    line.cleanups.append(end)
    assert process.stdout is not None
    urls = process.stdout.read().split()
    if len(urls) != count:
        raise LineFailed(f"{len(urls)} of {count} engines listen")
    return urls


def stalled_reader(line: Line, folder: Path) -> None:
    size = 100 * MB
    with farm_of(1) as farm:
        router = RouterProcess(line, folder, farm.urls)
        router.wait_ready(1)

        async def scene() -> tuple[float, float]:
            caller = Caller("127.0.0.1", router.port)

            def raw(much: int) -> bytes:
                return request(router.key, STREAM, "/v1/completions", f"X-Do: size={much}")

            await caller.ask(raw(1 * MB))
            before_mb = most_mb = router.rss_mb
            answer = await caller.begin(raw(size))
            await asyncio.to_thread(wait_for, lambda: answer.arrivals)
            caller.transport.pause_reading()
            for _ in range(50):
                await asyncio.sleep(0.1)
                most_mb = max(most_mb, router.rss_mb)
            taken_mb = farm.flooded / MB
            caller.transport.resume_reading()
            whole = (await caller.end()).whole
            line.check("then it reads on, and gets everything", whole)
            await close_all([caller])
            return most_mb - before_mb, taken_mb

        extra_mb, taken_mb = asyncio.run(scene())
        line.at_most("100 MB to a reader that stalls: extra memory", extra_mb, 5, "MB")
        line.note(f"{taken_mb:.1f} MB had left the engine, most of it in the kernel's buffers")
        router.close()


def many_requests(line: Line, folder: Path) -> None:
    """Good, refused, failed and abandoned requests, while engines come and go."""
    count = int(os.environ.get("EXASLURM_REQUESTS", "200000"))
    with farm_of(16) as farm:
        router = RouterProcess(line, folder, farm.urls)
        router.wait_ready(16)
        before = router.descriptors
        begin_s = time.monotonic()
        samples, churn = asyncio.run(churned(router, farm, count))
        rate = count / (time.monotonic() - begin_s)
        line.note(f"{count} requests at {rate:.0f}/s ended: {dict(churn.ended)}")
        line.check(
            "all ended as they should", not churn.unexpected, "; ".join(churn.unexpected[:3])
        )
        late = samples[len(samples) // 4 :]
        first_mb, last_mb = samples[0][1], samples[-1][1]
        slope = statistics.linear_regression(
            [done for done, _ in late], [used_mb for _, used_mb in late]
        ).slope
        line.note(f"{first_mb:.1f} MB at first, {late[0][1]:.1f} after a quarter, {last_mb:.1f} MB")
        line.at_most("growth over the last three quarters", slope * count * 0.75, 4, "MB")
        page = router.status
        left = page["in_flight"] + sum(replica["outstanding"] for replica in page["replicas"])
        line.check("nothing in flight or outstanding", left == 0, left)
        until(lambda: router.descriptors <= before + 4, 10)
        line.check("descriptors as before", router.descriptors <= before + 4, router.descriptors)
        router.close()


async def churned(
    router: RouterProcess, farm: FarmThread, count: int
) -> tuple[list[tuple[int, float]], Churn]:
    """Memory (MB) by requests done, a hundred times."""
    churn = Churn(router.port, clients=48, key=router.key)
    rng = random.Random(2)
    samples: list[tuple[int, float]] = []
    replaced_s = 0.0
    for _ in range(100):
        if time.monotonic() > replaced_s + 5:
            replaced_s = time.monotonic()
            router.put(rng.sample(farm.urls, 12))
        await churn.requests(count // 100)
        samples.append((churn.done, router.rss_mb))
    await churn.close()
    await asyncio.to_thread(wait_for, lambda: router.status["in_flight"] == 0)
    return samples, churn


def many_prompts(line: Line, _folder: Path) -> None:
    """The index of prefixes, through the code that chooses, with prompts that never come again."""
    targets = [target(number) for number in range(64)]
    affinity: Affinity[Target] = Affinity()
    affinity.retain(targets)
    rng = random.Random(1)
    sizes: dict[int, float] = {}
    text = b" word" * 400
    for number in range(1, PROMPTS + 1):
        keys = blocks(b"%d" % number + text, 0)
        chosen = affinity.choose(keys, rng) or targets[number % 64]
        affinity.sent(keys, chosen)
        if number % (PROMPTS // 10) == 0:
            sizes[number] = own_rss_mb()
    early, late = sizes[PROMPTS // 10], sizes[PROMPTS]
    line.note(f"{early:.1f} MB after {PROMPTS // 10} prompts, {late:.1f} MB after {PROMPTS}")
    line.at_most(f"growth over the last {PROMPTS * 9 // 10} prompts", late - early, 2, "MB")


def target(number: int) -> Target:
    replica = Replica(
        id=f"r{number}",
        cell="c000",
        model="chat",
        served_names=("chat",),
        url=f"http://127.0.0.1:{20000 + number}",
        node="",
        ready=True,
    )
    return Target(replica, None)


def own_rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MB
