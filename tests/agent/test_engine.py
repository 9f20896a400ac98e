"""One engine under a real init, with short limits: what takes a minute in production."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import aiohttp
import pytest

from exaslurm.agent.children import Children
from exaslurm.agent.engine import Engine, EngineTools
from exaslurm.agent.engine_state import StateFiles
from exaslurm.agent.memory import OomWatch
from exaslurm.agent.preflight import OptionCheck
from exaslurm.agent.probe import EngineProbe
from exaslurm.agent.settings import Times
from exaslurm.agent.staging import Stager
from exaslurm.core.cell import EngineStatus
from exaslurm.core.trial import requests_for
from exaslurm.engines.place import EnginePlace
from exaslurm.facts.memory import memory_cgroup, oom_kills
from exaslurm.util.iothread import IoThread
from tests.agent.harness import FAKE, free_block, make_binding, make_plan
from tests.bootstrap.harness import InitUnderTest, is_alive, running_init

TIMES = Times(
    probe_s=0.1, watch_s=0.1, scrape_s=0.2, hung_s=1.0, probe_timeout_s=0.4, restart_min_s=0.1,
    restart_max_s=0.4,
)  # fmt: skip


class Bench:
    """What an agent gives an engine, and the statuses that the engine had."""

    def __init__(self, init: InitUnderTest, session: aiohttp.ClientSession) -> None:
        self.init = init
        self.root = init.root
        self.session = session
        self.children = Children(init.node_dir)
        self.binding = make_binding(free_block())
        self.seen: list[EngineStatus] = []
        self.engine: Engine | None = None
        self.options = OptionCheck(str(self.root / "bin/python"), os.environ, (self.root,), 10.0,
                                   IoThread())  # fmt: skip
        key = self.root / "key"
        key.write_text("k")
        key.chmod(0o600)

    @property
    def init_pid(self) -> str:
        assert self.init.process is not None
        return str(self.init.process.pid)

    def start(self, behaviour: str, *, ready_s: float = 5.0, stall_s: float = 120.0) -> Engine:
        times = dataclasses.replace(TIMES, stall_s=stall_s)
        plan = make_plan(self.root, env={"FAKE_ENGINE": behaviour})
        plan = dataclasses.replace(
            plan, timeouts=dataclasses.replace(plan.timeouts, ready_s=ready_s)
        )
        tools = EngineTools(
            plan=plan,
            times=times,
            children=self.children,
            stager=Stager(plan, os.environ),
            options=self.options,
            states=StateFiles(self.init.node_dir),
            files=IoThread(),
            place=lambda replica: EnginePlace(
                node_dir=self.init.node_dir, log=self.root / "r.log", key_file=self.root / "key",
                interface=None,
            ),
            probe=lambda binding: EngineProbe(
                self.session, f"http://127.0.0.1:{binding.port}", "k", TIMES.probe_timeout_s,
                requests_for(plan.models[0], "m"),
            ),
            oom=OomWatch(pid=self.init_pid, kills=lambda: oom_kills(self.init_pid)),
        )  # fmt: skip
        self.engine = Engine(self.binding, tools, self._changed)
        return self.engine

    def _changed(self) -> None:
        if self.engine is not None:
            self.seen.append(self.engine.status)

    async def until(
        self, condition: Callable[[EngineStatus], bool], limit_s: float = 10.0
    ) -> EngineStatus:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            for status in self.seen:
                if condition(status):
                    self.seen = self.seen[self.seen.index(status) + 1 :]
                    return status
            await asyncio.sleep(0.02)
        raise AssertionError(f"not within {limit_s} s: {self.seen[-5:]}")


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    with running_init() as init:
        tools = init.root / "bin"
        tools.mkdir()
        (tools / "vllm").write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
        (tools / "vllm").chmod(0o755)
        init.start()
        await asyncio.to_thread(lambda: init.connect().close())
        async with aiohttp.ClientSession() as session:
            bench = Bench(init, session)
            await bench.children.refresh()
            fresh = asyncio.create_task(bench.children.keep_fresh())
            yield bench
            if bench.engine is not None:
                await bench.engine.stop(0.2)
            await bench.options.close()
            fresh.cancel()
            await asyncio.gather(fresh, return_exceptions=True)
            bench.children.close()


def healthy(status: EngineStatus) -> bool:
    return status.phase == "healthy"


async def test_a_hung_engine_is_ended_and_started_again(bench: Bench) -> None:
    bench.start("")
    first = await bench.until(healthy)
    os.kill(first.pid or 0, signal.SIGSTOP)
    failed = await bench.until(lambda s: s.phase == "failed")
    assert failed.cause == "hung: no answer on /health for 1 s"
    second = await bench.until(healthy)
    assert second.pid != first.pid
    assert second.cause is None


async def test_a_short_silence_is_no_reason(bench: Bench) -> None:
    bench.start("")
    first = await bench.until(healthy)
    os.kill(first.pid or 0, signal.SIGSTOP)
    await asyncio.sleep(0.5)
    os.kill(first.pid or 0, signal.SIGCONT)
    later = await bench.until(lambda s: s.load is not None)
    assert (later.phase, later.pid) == ("healthy", first.pid)
    await asyncio.sleep(1.0)
    assert bench.engine is not None
    assert bench.engine.status.pid == first.pid


async def test_one_that_has_a_request_and_does_nothing_is_hung(bench: Bench) -> None:
    bench.start("stall", stall_s=1.0)
    first = await bench.until(healthy)
    failed = await bench.until(lambda s: s.phase == "failed")
    assert (failed.cause or "").startswith("hung: a request and not a token for ")
    assert (failed.cause or "").endswith(" s, though /health answers")
    assert not is_alive(first.pid or 0)
    assert (await bench.until(healthy)).restarts == 1


async def test_one_that_answers_another_request_is_not(bench: Bench) -> None:
    bench.start("slow", stall_s=0.6)
    first = await bench.until(healthy)
    await asyncio.sleep(2.0)
    assert bench.engine is not None
    assert (bench.engine.status.phase, bench.engine.status.pid) == ("healthy", first.pid)


async def test_one_that_computes_on_cpus_has_more_time(bench: Bench) -> None:
    bench.start("spin", stall_s=2.0)
    first = await bench.until(healthy)
    await asyncio.sleep(5.0)
    assert bench.engine is not None
    assert (bench.engine.status.phase, bench.engine.status.pid) == ("healthy", first.pid)


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A memory cgroup with a limit of 128 MiB, where this user may make one."""
    found = memory_cgroup(Path("/proc"), Path("/sys/fs/cgroup"))
    if found is None:
        pytest.skip("no memory cgroup")
    path = found[1] / f"exaslurm-test-{os.getpid()}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"cannot make a memory cgroup: {error}")
    try:
        if (path / "memory.limit_in_bytes").exists():
            limits = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
        else:
            limits = ("memory.max", "memory.swap.max")
        if not (path / limits[0]).exists():
            pytest.skip("memory is not among the controllers of the cgroup")
        for name in limits:
            if (path / name).exists():
                (path / name).write_text("0" if "swap.max" in name else str(128 << 20))
        yield path
    finally:
        for _ in range(100):
            if not (path / "cgroup.procs").read_text():
                break
            time.sleep(0.1)
        path.rmdir()


@pytest.mark.timeout(60)
async def test_the_kernel_is_named_that_killed_for_memory(small_cgroup: Path, bench: Bench) -> None:
    (small_cgroup / "cgroup.procs").write_text(bench.init_pid)
    bench.start("hog")
    failed = await bench.until(lambda s: s.phase == "failed", 30.0)
    assert failed.cause == (
        f"the kernel killed it for memory: limit 0.125 GiB, cgroup /{small_cgroup.name}"
    )


async def test_an_engine_that_never_answers_is_ended_in_time(bench: Bench) -> None:
    bench.start("mute", ready_s=1.0)
    loading = await bench.until(lambda s: s.phase == "loading" and s.pid is not None)
    failed = await bench.until(lambda s: s.phase == "failed")
    assert failed.cause == "no answer on /health 1 s after its start"
    assert not is_alive(loading.pid or 0)


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
async def test_a_clock_that_jumps_while_it_loads(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    bench.start("mute", ready_s=2.0)
    await bench.until(lambda s: s.phase == "loading" and s.pid is not None)
    began = time.monotonic()
    # Its watch has begun by then.
    await asyncio.sleep(0.5)
    machine = time.time
    monkeypatch.setattr(time, "time", lambda: machine() + jump_s)
    failed = await bench.until(lambda s: s.phase == "failed", 30.0)
    assert failed.cause == "no answer on /health 2 s after its start"
    assert time.monotonic() - began > 1.0


async def test_pauses_between_starts_grow(bench: Bench) -> None:
    bench.start("crash")
    began = time.monotonic()
    await bench.until(lambda s: s.phase == "failed" and s.restarts == 3)
    assert time.monotonic() - began > 0.1 + 0.2


async def test_stop_ends_one_that_ignores_sigterm_and_its_family(bench: Bench) -> None:
    engine = bench.start("stubborn,family")
    status = await bench.until(healthy)
    child = bench.children.get("engine:c000-r0000")
    assert child is not None
    members = await bench.children.members(child)
    assert status.pid in members
    assert len(members) == 3
    await engine.stop(0.3)
    assert engine.status.phase == "stopped"
    assert not any(is_alive(pid) for pid in members)
    assert "engine:c000-r0000" not in bench.init.children()


async def test_a_stop_while_it_starts_leaves_nothing(bench: Bench) -> None:
    for delay_s in (0.0, 0.01, 0.05, 0.1, 0.2):
        engine = bench.start("")
        await asyncio.sleep(delay_s)
        await engine.stop(0.2)
        assert engine.status.phase == "stopped"
        assert set(bench.init.children()) == {"agent"}
