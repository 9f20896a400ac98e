"""Engines that are killed, and a host that vanishes, under load."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from acceptance.lab import ROOT
from acceptance.router.kit import RouterProcess
from acceptance.router.traffic import Asked, Traffic
from acceptance.router.vllm import Vllm, node_environment, tiny_model
from acceptance.runner import Line, LineFailed
from tests.tools.fleet import INNER, Engine, wait_for

TITLE = "an engine is killed under load; a host vanishes; the same with real vLLM"

# 20 tokens a second in each of 256 streams: the pace of a large model.
PACED = ("--decode-tokens-per-s", "20", "--batch-slowdown", "0", "--max-num-seqs", "512")
QUICK = ("--decode-tokens-per-s", "2000", "--batch-slowdown", "0")
_BEFORE_S = 4.0
_AFTER_S = 4.0


def run(line: Line) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, part in (("killed", killed), ("vanished", vanished), ("vllm", real_vllm)):
            own = Path(folder) / name
            own.mkdir()
            part(line, own)


def killed(line: Line, folder: Path) -> None:
    """Eight engines, each a process; one is killed and comes back."""
    engines = start(line, 8, *PACED)
    router = RouterProcess(line, folder, [engine.url for engine in engines], guarded=True)
    router.wait_ready(8)
    victim = engines[3]
    ident = victim.url.removeprefix("http://")

    async def scene() -> tuple[Traffic, float, float]:
        traffic = Traffic(router.url, router.key, "chat", streams=256, plain_per_s=100)
        async with traffic:
            await asyncio.sleep(_BEFORE_S)
            victim.process.kill()
            killed_s = time.monotonic()
            await asyncio.to_thread(victim.close)
            await asyncio.sleep(_AFTER_S)
            fresh = await asyncio.to_thread(Engine, *PACED, port=victim.port)
            line.cleanups.append(fresh.close)
            ready_s = await asyncio.to_thread(healthy, fresh.url)
            await asyncio.sleep(_AFTER_S)
        return traffic, killed_s, ready_s

    traffic, killed_s, ready_s = asyncio.run(scene())
    plain = sum(not asked.stream for asked in traffic.asked)
    line.note(f"256 streams at 20 tokens/s, {plain} plain and {len(traffic.asked) - plain} in all")
    judge(line, traffic, ident, killed_s, broken_s=1.0)
    used = [
        asked.begun_s
        for asked in traffic.asked
        if asked.replica == ident and asked.begun_s > ready_s and asked.good
    ]
    first_s = min(used, default=float("inf")) - ready_s
    line.at_most("used again after it was ready", first_s, 2.0)
    outstanding = sum(replica["outstanding"] for replica in router.status["replicas"])
    line.check("nothing is left outstanding", outstanding == 0, outstanding)


def judge(line: Line, traffic: Traffic, ident: str, killed_s: float, *, broken_s: float) -> None:
    """Nothing that had not begun failed; what had begun ended with an error event in time."""
    broken = [asked for asked in traffic.asked if asked.stream and asked.error == "event"]
    failed = [asked for asked in traffic.asked if not asked.good and asked not in broken]
    line.check(f"{len(traffic.asked)} requests: not begun and failed", not failed, tell(failed))
    there = sum(
        asked.stream and asked.replica == ident and asked.begun_s < killed_s < asked.ended_s
        for asked in traffic.asked
    )
    line.at_least("streams that were under way there", there, 1)
    line.check("each of them ended with an error event", len(broken) == there, len(broken))
    strange = [asked for asked in broken if asked.replica != ident]
    line.check("and no stream of another engine", not strange, tell(strange))
    latest_s = max((asked.ended_s for asked in broken), default=float("inf")) - killed_s
    line.at_most("the last of these events after the end", latest_s, broken_s)


def tell(found: list[Asked]) -> str:
    words = [f"{asked.status} {asked.error} {asked.replica}" for asked in found[:4]]
    return "; ".join([str(len(found)), *words])


def start(line: Line, count: int, *arguments: str) -> list[Engine]:
    """Simulated engines, side by side."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        engines = list(pool.map(lambda _: Engine(*arguments), range(count)))
    line.cleanups += [engine.close for engine in engines]
    return engines


def healthy(url: str, timeout_s: float = 120.0) -> float:
    """When ``/health`` first answered (monotonic)."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        with contextlib.suppress(OSError), urllib.request.urlopen(url + "/health", timeout=5):
            return time.monotonic()
        time.sleep(0.02)
    raise LineFailed(f"{url} was not ready within {timeout_s:g} s")


# A host that vanishes.


def vanished(line: Line, folder: Path) -> None:
    """One engine on a host of its own, whose link goes down: nothing says that it is gone."""
    if os.geteuid() != 0:
        raise LineFailed("a host of its own needs root (ip netns)")
    (near,) = start(line, 1, *QUICK)
    with remote_host() as (run_there, address, unplug):
        far = run_there("--host", address, "--decode-tokens-per-s", "2", "--batch-slowdown", "0")
        line.cleanups.append(lambda: end(far))
        url = f"http://{address}:8000"
        healthy(url)
        router = RouterProcess(line, folder, [url], guarded=True)
        router.wait_ready(1)

        async def scene() -> tuple[Traffic, Traffic, float]:
            # 60 tokens at 2 a second: these wait for half a minute, unless somebody notices.
            waiting = Traffic(router.url, router.key, "chat", 0, plain_at_once=32, plain_tokens=60)
            begun = Traffic(router.url, router.key, "chat", 8, stream_tokens=60)
            async with waiting, begun:
                await asyncio.sleep(2.0)
                router.put([url, near.url])
                await asyncio.to_thread(router.wait_ready, 2)
                waiting.over_soon()
                begun.over_soon()
                unplug()
                gone_s = time.monotonic()
            return waiting, begun, gone_s

        waiting, begun, gone_s = asyncio.run(scene())
        failed = [asked for asked in waiting.asked if not asked.good]
        line.check(
            f"{len(waiting.asked)} plain requests that waited there: failed",
            not failed,
            tell(failed),
        )
        elsewhere = {asked.replica for asked in waiting.asked} == {near.url.removeprefix("http://")}
        line.check("all were answered elsewhere", elsewhere)
        last_s = max(asked.ended_s for asked in waiting.asked) - gone_s
        line.at_most("the last answer after the link went down", last_s, 3.0)
        ended = [asked for asked in begun.asked if asked.error == "event"]
        line.check("streams from there ended with an error event", len(ended) == 8, len(ended))
        last_s = max((asked.ended_s for asked in ended), default=float("inf")) - gone_s
        line.at_most("the last of these events", last_s, 3.0)


RemoteHost = tuple[Callable[..., "subprocess.Popen[bytes]"], str, Callable[[], None]]


@contextlib.contextmanager
def remote_host() -> Iterator[
    tuple[Callable[..., subprocess.Popen[bytes]], str, Callable[[], None]]
]:
    """A network namespace with a link to here: how to start an engine there, its address, and how
    to pull the plug."""
    tag = f"exr{os.getpid() % 100000}"
    outside, inside = f"{tag}a", f"{tag}b"
    net = 1 + os.getpid() % 250
    here, there = f"10.213.{net}.1", f"10.213.{net}.2"

    def ip(*words: str) -> None:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20)
        if done.returncode:
            raise LineFailed(f"ip {' '.join(words)}: {done.stderr.strip()}")

    def start_there(*arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "exaslurm.engines.simulated", "--port", "8000"]
        return subprocess.Popen(
            ["ip", "netns", "exec", tag, *command, "--served-model-name", "chat", *arguments],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "EXASLURM_ENGINE_KEY": INNER},
            start_new_session=True,
        )

    ip("netns", "add", tag)
    try:
        ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", tag)
        ip("addr", "add", f"{here}/30", "dev", outside)
        ip("link", "set", outside, "up")
        ip("-n", tag, "addr", "add", f"{there}/30", "dev", inside)
        ip("-n", tag, "link", "set", inside, "up")
        ip("-n", tag, "link", "set", "lo", "up")
        yield start_there, there, lambda: ip("-n", tag, "link", "set", inside, "down")
    finally:
        ip("netns", "del", tag)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with all its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=20)


# The real engine.

_OPTIONS = ("--served-model-name", "chat", "--max-model-len", "2048")


def real_vllm(line: Line, folder: Path) -> None:
    """Three real engines at a concurrency of 8."""
    env = node_environment()
    model = tiny_model(line, env, folder)
    engines = [Vllm(line, env, model, folder / f"vllm-{n}.log", *_OPTIONS) for n in range(3)]
    for engine in engines:
        engine.wait_ready()
    victim = engines[1]
    router = RouterProcess(line, folder, [engine.url for engine in engines], guarded=True)
    router.wait_ready(3)
    ident = victim.url.removeprefix("http://")

    async def scene() -> tuple[Traffic, float, float]:
        traffic = Traffic(
            router.url, router.key, "chat", 6, plain_at_once=2, stream_tokens=200, plain_tokens=20
        )
        async with traffic:
            await asyncio.sleep(_BEFORE_S)
            # At a moment when it has streams under way.
            await asyncio.to_thread(wait_for, lambda: under_way(traffic, ident))
            victim.close()
            killed_s = time.monotonic()
            await asyncio.sleep(_AFTER_S)
            log = folder / "vllm-again.log"
            again = Vllm(line, env, model, log, *_OPTIONS, port=victim.port)
            ready_s = await asyncio.to_thread(again.wait_ready)
            await asyncio.sleep(_AFTER_S)
        return traffic, killed_s, ready_s

    traffic, killed_s, ready_s = asyncio.run(scene())
    judge(line, traffic, ident, killed_s, broken_s=1.0)
    used = [
        asked.begun_s
        for asked in traffic.asked
        if asked.replica == ident and asked.begun_s > ready_s and asked.good
    ]
    line.at_most("used again after it was ready", min(used, default=float("inf")) - ready_s, 2.0)


def under_way(traffic: Traffic, ident: str) -> bool:
    recent = traffic.asked[-64:]
    return any(asked.stream and asked.replica == ident and not asked.ended_s for asked in recent)
