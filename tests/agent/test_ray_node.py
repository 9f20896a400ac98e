"""Ray on one node under a real init; a small script stands in for ``ray start``."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from exaslurm.agent import ray_node
from exaslurm.agent.children import Children
from exaslurm.agent.ray_node import RayNode
from exaslurm.agent.settings import Settings
from exaslurm.core import ports
from exaslurm.core.cell import RayNodeStatus, RayTarget
from exaslurm.core.execspec import ExecSpec
from exaslurm.core.facts import NodeFacts
from exaslurm.core.plan import RayPlan
from exaslurm.rundir import RunDir
from exaslurm.util.iothread import IoThread
from tests.agent.harness import free_block, make_plan
from tests.bootstrap.harness import InitUnderTest, is_alive, running_init

# Listens like a raylet, with a child in a session of its own like a worker.
STAND_IN = """
import socket, subprocess, sys, time
subprocess.Popen(["sleep", "1000"], start_new_session=True)
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("epoch", sys.argv[2], flush=True)
while True:
    server.accept()[0].close()
"""


class Bench:
    """A node, and the Ray that it would start."""

    def __init__(self, init: InitUnderTest, *, head: bool) -> None:
        self.init = init
        self.base = free_block()
        plan = make_plan(init.root)
        ray = RayPlan(enabled=True, start_timeout_s=1.0, object_store_mib=100)
        run_dir = RunDir(init.root / "run")
        run_dir.make()
        gen_dir = run_dir.generation(1)
        gen_dir.make(("c000",))
        self.settings = Settings(
            node_dir=init.node_dir, run_dir=run_dir, gen_dir=gen_dir, cell_name="c000",
            het_group=0 if head else 1, head_host="127.0.0.1", port_base=self.base, local=False,
            grace_s=5.0, plan=dataclasses.replace(plan, ray=ray).sealed(),
            environ={"SLURM_NODEID": "0"},
        )  # fmt: skip
        self.facts = NodeFacts(
            node="n1", het_group=0, order=0, address="127.0.0.1", agent_port=self.base + 10,
            port_base=self.base, cpus=(0,), cpus_granted=1, mem_mib=1000,
        )  # fmt: skip
        self.children = Children(init.node_dir)

    def target(self, epoch: int) -> RayTarget:
        gcs = self.base + ports.RAY_GCS
        return RayTarget(epoch=epoch, head_address="127.0.0.1", gcs_port=gcs)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RayNode]:
        """An agent's part for Ray; what it started goes on afterwards."""
        node = RayNode(self.settings, self.facts, self.children, IoThread(), lambda: None)
        task = asyncio.create_task(node.run())
        try:
            yield node
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def pid(self) -> int:
        child = self.children.get("ray")
        assert child is not None
        return child.pid


async def until(
    node: RayNode, condition: Callable[[RayNodeStatus], bool], limit_s: float = 10.0
) -> RayNodeStatus:
    deadline = time.monotonic() + limit_s
    while not condition(node.status):
        assert time.monotonic() < deadline, node.status
        await asyncio.sleep(0.02)
    return node.status


def up(epoch: int) -> Callable[[RayNodeStatus], bool]:
    return lambda status: (status.state, status.epoch) == ("up", epoch)


@pytest.fixture
async def make_bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Bench]]:
    def command(facts: NodeFacts, epoch: int) -> ExecSpec:
        port = facts.port_base + ports.RAY_NODE_MANAGER
        return ExecSpec(argv=(sys.executable, "-c", STAND_IN, str(port), str(epoch)))

    monkeypatch.setattr(
        ray_node, "head_command", lambda p, facts, r, n, epoch: command(facts, epoch)
    )
    monkeypatch.setattr(
        ray_node, "worker_command", lambda p, facts, target, r, n: command(facts, target.epoch)
    )
    with running_init() as init:
        init.start()
        await asyncio.to_thread(lambda: init.connect().close())
        benches: list[Bench] = []
        tasks: list[asyncio.Task[None]] = []

        def make(*, head: bool) -> Bench:
            bench = Bench(init, head=head)
            benches.append(bench)
            tasks.append(asyncio.create_task(bench.children.keep_fresh()))
            return bench

        yield make
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for bench in benches:
            bench.children.close()


MakeBench = Callable[..., Bench]


async def test_the_head_starts_at_once_and_waits_for_a_new_epoch(make_bench: MakeBench) -> None:
    bench = make_bench(head=True)
    async with bench.running() as node:
        status = await until(node, up(1))
        assert status.seconds is not None
        first = bench.pid()
        os.kill(first, signal.SIGKILL)
        failed = await until(node, lambda s: s.state == "failed")
        assert failed.cause is not None
        assert failed.cause.startswith("ended by SIGKILL")
        await asyncio.sleep(1.5)  # longer than its pause: GCS is lost, this epoch is over
        assert node.status.state == "failed"
        node.want(bench.target(2))
        await until(node, up(2))
        await node.stop()
        assert not is_alive(bench.pid())


async def test_a_new_epoch_replaces_what_runs_with_all_its_processes(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(head=True)
    async with bench.running() as node:
        await until(node, up(1))
        child = bench.children.get("ray")
        assert child is not None
        members = await bench.children.members(child)
        assert len(members) == 2
        node.want(bench.target(5))
        await until(node, up(5))
        assert not any(is_alive(pid) for pid in members)


async def test_the_next_agent_adopts_it(make_bench: MakeBench) -> None:
    bench = make_bench(head=True)
    async with bench.running() as node:
        await until(node, up(1))
        node.want(bench.target(3))
        await until(node, up(3))
        pid = bench.pid()
    async with bench.running() as node:
        status = await until(node, up(3))
        assert bench.pid() == pid
        assert status.seconds is None  # nobody measured it this time


async def test_the_next_agent_of_the_head_starts_no_lost_epoch_again(
    make_bench: MakeBench,
) -> None:
    """Ray and agent died together: a GCS that knows nothing must not pass for the old one."""
    bench = make_bench(head=True)
    async with bench.running() as node:
        await until(node, up(1))
    first = bench.pid()
    os.kill(first, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while bench.children.get("ray").exit is None:  # type: ignore[union-attr]
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    async with bench.running() as node:
        failed = await until(node, lambda s: s.state == "failed")
        assert failed.epoch == 1
        assert "ended by SIGKILL" in str(failed.cause)
        assert bench.pid() == first
        node.want(bench.target(2))
        await until(node, up(2))
        await node.stop()


async def test_another_node_waits_for_the_gcs_and_comes_back_by_itself(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(head=False)
    async with bench.running() as node:
        await asyncio.sleep(0.2)
        assert node.status == RayNodeStatus(state="starting", epoch=0)
        node.want(bench.target(1))
        failed = await until(node, lambda s: s.state == "failed")
        assert failed.cause is not None
        assert f"127.0.0.1:{bench.base + ports.RAY_GCS} does not answer" in failed.cause
        gcs = await asyncio.start_server(
            lambda r, w: w.close(), "127.0.0.1", bench.base + ports.RAY_GCS
        )
        async with gcs:
            await until(node, up(1))
            first = bench.pid()
            os.kill(first, signal.SIGKILL)
            await until(node, lambda s: s.state == "failed")
            await until(node, up(1))
            assert bench.pid() != first
            log = Path(bench.settings.gen_dir.logs("c000") / "n1.ray.log")
            assert (await asyncio.to_thread(log.read_text)).count("epoch 1") == 2
