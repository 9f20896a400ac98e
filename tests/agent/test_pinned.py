"""Engine and agent on their cores, as the kernel has them; a change is reported."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from tests.agent.harness import Node, holds

OURS = sorted(os.sched_getaffinity(0))
pytestmark = pytest.mark.skipif(len(OURS) < 2, reason="needs two CPUs")


async def test_a_changed_mask_is_reported_within_a_heartbeat(
    make_node: Callable[..., Node],
) -> None:
    node = make_node("family")
    node.want(node.binding())
    await node.start()
    engine = await node.engine(lambda e: e.cpus_actual is not None)
    (core,) = node.binding().cores
    assert (engine.cpus_actual, engine.off_plan) == ((core,), None)
    assert engine.pid is not None
    os.sched_setaffinity(engine.pid, {OURS[1]})
    began = time.monotonic()
    changed = await node.engine(lambda e: e.off_plan is not None)
    # A heartbeat is 5 s; init is asked for the processes first, on a machine that is busy.
    assert time.monotonic() - began < 5.0 + 2.0
    assert changed.cpus_actual == (core, OURS[1])
    assert changed.phase == "healthy"
    assert f"planned for CPUs {core}, but process {engine.pid} (" in (changed.off_plan or "")
    os.sched_setaffinity(engine.pid, {core})
    back = await node.engine(lambda e: e.off_plan is None)
    assert back.cpus_actual == (core,)


async def test_the_agent_keeps_off_the_engines_cores(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.want(node.binding())
    await node.start()
    await node.engine(lambda e: e.phase == "healthy")
    left = set(OURS) - set(node.binding().cores)
    agent = node.agent_pid()
    assert await holds(lambda: os.sched_getaffinity(agent) == left, 7.0)
