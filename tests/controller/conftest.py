"""A cell of one head and workers as data, and reports as agents would send them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from exaslurm.controller.cell import Cell
from exaslurm.core.cell import AgentReport, EngineStatus, RayNodeStatus
from exaslurm.core.facts import NodeFacts
from exaslurm.core.marker import BootstrapMarker
from exaslurm.core.plan import EnginePlan, Plan
from tests.tools import plans

WORKERS = ("n2", "n3", "n4")
OFF = RayNodeStatus(state="off", epoch=0)


def make_plan(
    *,
    replicas: int = 3,
    nodes: int = 3,
    min_nodes: int = 2,
    most: int = 4,
    ray: bool = False,
    nodes_s: float = 30.0,
    engine_args: dict[str, Any] | None = None,
) -> Plan:
    model = plans.make_model(
        engine=EnginePlan(kind="simulated", device="cpu", args=engine_args or {}),
        max_replicas_per_node=most,
        shard="a",
    )
    return plans.make_plan(
        models=[model],
        cells=plans.make_cells(
            plans.make_component(0, "head"),
            plans.make_component(1, "worker", nodes=nodes, min_nodes=min_nodes, cpus_per_node=8),
            replicas=[("m", "a", replicas)],
        ),
        ray=ray,
        ray_start_timeout_s=60.0,
        nodes_s=nodes_s,
        stage_s=60.0,
        ready_s=60.0,
        drain_s=5.0,
    ).sealed()


def make_marker(plan: Plan, workers: Sequence[str] = WORKERS) -> BootstrapMarker:
    return BootstrapMarker(
        plan_hash=plan.hash,
        deployment="d",
        cell="c000",
        job_id="41",
        job_name="exa-d-c000",
        het_job_ids={"0": "41", "1": "42"},
        nodes={"0": ("n1",), "1": tuple(workers)},
        host="n1",
        started_s=1000.0,
    )


def make_cell(*, now: float = 0.0, **options: Any) -> Cell:
    plan = make_plan(**options)
    return Cell(plan, make_marker(plan), generation=1, now=now, submitted_s=990.0)


def facts_of(node: str, *, address: str = "127.0.0.1", agent_port: int = 20010) -> NodeFacts:
    number = int(node[1:])
    return NodeFacts(
        node=node,
        het_group=0 if number == 1 else 1,
        order=max(0, number - 2),
        address=address,
        agent_port=agent_port,
        port_base=20000 + 500 * number,
        cpus=tuple(range(8)),
        cpus_granted=8,
        mem_mib=16000,
    )


def report(
    node: str,
    *engines: EngineStatus,
    seen: int = 0,
    ray: RayNodeStatus = OFF,
    facts: NodeFacts | None = None,
) -> AgentReport:
    return AgentReport(
        node=node,
        cell="c000",
        incarnation="i",
        started_s=995.0,
        facts=facts or facts_of(node),
        seen_version=seen,
        engines=engines,
        ray=ray,
    )


def engine(replica: str, phase: Any = "healthy", *, pid: int = 100, **more: Any) -> EngineStatus:
    return EngineStatus(replica=replica, phase=phase, pid=pid, start_ticks=pid * 7, **more)


def everybody(cell: Cell, now: float, nodes: Sequence[str] = ("n1", *WORKERS)) -> None:
    """All these nodes report, with what they run (nothing yet)."""
    for node in nodes:
        cell.on_report(report(node), now)


def bind(cell: Cell, now: float) -> None:
    """What the server does when the nodes are there."""
    from exaslurm.bind.binder import bind_cell

    facts = cell.wants_binding(now)
    assert facts is not None
    cell.bind(bind_cell(cell.plan, cell.cell, facts))
    cell.advance(now)


def serve_all(cell: Cell, now: float) -> None:
    """Every replica is healthy and answers its canary."""
    by_node: dict[str, list[EngineStatus]] = {}
    for index, replica in enumerate(cell.replicas.values()):
        by_node.setdefault(replica.binding.node, []).append(engine(replica.id, pid=100 + index))
    for node, engines in by_node.items():
        cell.on_report(report(node, *engines), now)
    for replica in cell.canaries_due(now):
        assert replica.process is not None
        cell.on_canary(replica, replica.process, None, now)


async def eventually(check: Callable[[], Any], *, seconds: float = 10.0) -> Any:
    """The first true answer of ``check`` (plain or async), asked 50 times a second."""
    for _ in range(int(seconds * 50)):
        found = check()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(f"still not true after {seconds} s: {inspect.getsource(check)}")
