"""A part of a replica over several nodes, under a real init."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import socket
import time
from collections.abc import Callable

import pytest

from exaslurm.agent.gang import FollowerProbe, leader_gone, part_name
from exaslurm.bind.gang import joined
from exaslurm.core.binding import ReplicaBinding
from tests.agent.harness import Node, make_binding
from tests.agent.test_engine import Bench, bench, healthy
from tests.bootstrap.harness import is_alive

__all__ = ["bench"]

MakeNode = Callable[..., Node]


def make_gang(binding: ReplicaBinding, leader_port: int) -> ReplicaBinding:
    """The part of rank 1 of a gang whose other part is the leader on this host."""
    leader = dataclasses.replace(binding, node="n0", port=leader_port, slot=9)
    return joined([leader, binding]).on_node(binding.node)


def follower(bench: Bench, behaviour: str, leader_port: int = 1) -> None:
    """Start an engine as rank 1."""
    bench.binding = make_gang(bench.binding, leader_port)
    engine = bench.start(behaviour)
    engine._probe = FollowerProbe()


def test_parts_write_to_files_of_their_own(bench_binding: ReplicaBinding) -> None:
    gang = make_gang(bench_binding, 1)
    assert [part_name(part) for part in gang.parts()] == ["c000-r0000", "c000-r0000.1"]
    assert part_name(bench_binding) == "c000-r0000"


@pytest.fixture
def bench_binding() -> ReplicaBinding:
    return make_binding(20000)


async def test_a_part_that_ends_is_not_started_again_by_its_agent(bench: Bench) -> None:
    follower(bench, "")
    first = await bench.until(healthy)
    os.kill(first.pid or 0, signal.SIGKILL)
    failed = await bench.until(lambda s: s.phase == "failed")
    assert failed.cause is not None
    assert "SIGKILL" in failed.cause
    assert bench.engine is not None
    await asyncio.wait([bench.engine._task], timeout=5)
    assert bench.engine._task.done()
    assert bench.engine.status.phase == "failed"


async def test_a_part_that_ended_without_its_agent_has_failed(bench: Bench) -> None:
    follower(bench, "")
    first = await bench.until(healthy)
    assert bench.engine is not None
    bench.engine._task.cancel()  # the agent dies ...
    await asyncio.gather(bench.engine._task, return_exceptions=True)
    os.kill(first.pid or 0, signal.SIGKILL)  # ... and then the engine
    child = bench.children.get("engine:c000-r0000")
    assert child is not None
    assert await bench.children.wait_exit(child, 5.0) is not None
    bench.seen.clear()
    bench.start("")
    failed = await bench.until(lambda s: s.phase == "failed")
    assert failed.cause == "it ended while the node agent was away"


async def test_the_next_start_of_the_gang_is_another(bench: Bench) -> None:
    follower(bench, "")
    first = await bench.until(healthy)
    assert bench.engine is not None
    await bench.engine.stop(0.0)
    assert not is_alive(first.pid or 0)
    bench.binding = dataclasses.replace(bench.binding, attempt=1)
    bench.start("")
    assert (await bench.until(healthy)).attempt == 1


async def test_a_follower_ends_after_its_leader(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as leader:
        follower(bench, "", leader.getsockname()[1])
        status = await bench.until(healthy)
        assert bench.engine is not None
        stopping = asyncio.create_task(bench.engine.stop(30.0))
        await asyncio.wait([stopping], timeout=1.0)
        assert not stopping.done()
        assert is_alive(status.pid or 0)
    began = time.monotonic()
    await asyncio.wait_for(stopping, 10.0)
    assert time.monotonic() - began < 5.0
    assert not is_alive(status.pid or 0)


async def test_a_follower_does_not_wait_for_ever(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as leader:
        gang = make_gang(bench.binding, leader.getsockname()[1])
        assert not await leader_gone(gang, 0.6)


async def test_a_gang_that_has_failed_is_ended_without_waiting(make_node: MakeNode) -> None:
    """The engine ignores SIGTERM: whoever gives it time to finish waits for seven seconds."""
    node = make_node("stubborn")
    gang = joined([node.binding(), dataclasses.replace(node.binding(), node="n2")])
    node.want(gang)
    await node.start()
    first = await node.engine(healthy)
    began = time.monotonic()
    await node.push(kill=(gang.id,))
    report = await node.until(lambda report: not report.engines)
    assert time.monotonic() - began < 4.0
    assert report.seen_version == node.desired.version
    assert not is_alive(first.pid or 0)
    await node.push(dataclasses.replace(gang, attempt=1))
    again = await node.engine(healthy)
    assert (again.attempt, again.pid != first.pid) == (1, True)
    # Another start is never beside this one, even if nobody says to kill it.
    began = time.monotonic()
    await node.push(dataclasses.replace(gang, attempt=2))
    third = await node.engine(lambda engine: healthy(engine) and engine.attempt == 2)
    assert time.monotonic() - began < 6.0
    assert not is_alive(again.pid or 0)
    assert is_alive(third.pid or 0)


async def test_a_part_is_adopted_by_the_next_agent(make_node: MakeNode) -> None:
    node = make_node("")
    gang = joined([node.binding(), dataclasses.replace(node.binding(), node="n2")])
    node.want(gang)
    await node.start()
    first = await node.engine(healthy)
    incarnation = node.reports[-1].incarnation
    os.kill(node.agent_pid(), signal.SIGKILL)
    report = await node.until(lambda report: report.incarnation != incarnation)
    assert [(e.phase, e.pid, e.attempt) for e in report.engines] == [("healthy", first.pid, 0)]
