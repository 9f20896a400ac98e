"""Plans and nodes for the binder, as data: no spec and no site is needed for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from exaslurm.core.facts import GpuFact, HcaFact, NodeFacts, NumaFact
from exaslurm.core.plan import (
    CellPlan,
    ComponentPlan,
    EnginePlan,
    GatewayPlan,
    ModelPlan,
    ModelSource,
    NodeEnvironment,
    Plan,
    PortPolicy,
    RayPlan,
    ReplicaSet,
    ShardPlan,
    SlotTemplate,
    TimeoutPlan,
)


def make_model(
    name: str, *, gpus: int = 0, cores: int = 1, mem_gib: float = 1.0, most: int = 16
) -> ModelPlan:
    return ModelPlan(
        name=name,
        source=ModelSource(kind="none", value=""),
        engine=EnginePlan(kind="simulated", device="cpu"),
        tensor=1,
        pipeline=1,
        slot=SlotTemplate(gpus=gpus, cores=cores, mem_gib=mem_gib),
        max_replicas_per_node=most,
        shards=(ShardPlan(name="a", served_names=(name,)),),
    )


def make_plan_of(
    models: Sequence[ModelPlan],
    sets: Sequence[tuple[str, str, int]],
    *,
    nodes: int,
    role: Any = "worker",
    layout: Any = "het",
) -> Plan:
    worker = ComponentPlan(
        het_group=1 if role == "worker" else 0,
        role=role,
        kind="gpu",
        nodes=nodes,
        min_nodes=1,
        cpus_per_node=16,
        mem_mib_per_node=None,
        gpus_per_node=4,
        directives=(),
    )
    head = ComponentPlan(
        het_group=0,
        role="head",
        kind="cpu",
        nodes=1,
        min_nodes=1,
        cpus_per_node=2,
        mem_mib_per_node=None,
        gpus_per_node=0,
        directives=(),
    )
    return Plan(
        deployment="d",
        site="s",
        layout=layout,
        models=tuple(models),
        cells=(
            CellPlan(
                name="c000",
                index=0,
                components=(head, worker) if role == "worker" else (worker,),
                replica_sets=tuple(ReplicaSet(model=m, shard=s, count=n) for m, s, n in sets),
            ),
        ),
        node=NodeEnvironment(
            python="python3", tmp="/tmp", shared="/s", local=None, interface=None, host_suffix=""
        ),
        ports=PortPolicy(),
        ray=RayPlan(enabled=True, start_timeout_s=1.0, object_store_mib=80),
        timeouts=TimeoutPlan(nodes_s=1.0, stage_s=1.0, ready_s=1.0, drain_s=1.0),
        gateway=GatewayPlan(home="login", bind="127.0.0.1", port=0, start_with_submit=False),
    ).sealed()


def make_node(
    order: int,
    *,
    group: int = 1,
    cpus: Sequence[int] = tuple(range(16)),
    granted: int | None = -1,
    mem_mib: int = 64 * 1024,
    numa: int = 1,
    gpus: int = 0,
    gpu_numa: Sequence[int] | None = None,
    hcas: Sequence[HcaFact] = (),
    switch: str | None = None,
) -> NodeFacts:
    """A node with its CPUs dealt over ``numa`` NUMA nodes in runs. ``granted`` -1: all."""
    size = max(1, len(cpus) // numa)
    return NodeFacts(
        node=f"n{group}{order:03d}",
        het_group=group,
        order=order,
        address=f"10.0.{group}.{order + 1}",
        agent_port=20010,
        port_base=20000,
        cpus=tuple(cpus),
        cpus_granted=len(cpus) if granted == -1 else granted,
        mem_mib=mem_mib,
        numa=tuple(
            NumaFact(
                index=i,
                cpus=tuple(cpus[i * size : (i + 1) * size if i < numa - 1 else None]),
                mem_mib=mem_mib // numa,
            )
            for i in range(numa)
        ),
        gpus=tuple(
            GpuFact(visible_id=str(i), vendor="nvidia", numa=gpu_numa[i] if gpu_numa else None)
            for i in range(gpus)
        ),
        hcas=tuple(hcas),
        switch=switch,
    )


@pytest.fixture(scope="session")
def model() -> Callable[..., ModelPlan]:
    return make_model


@pytest.fixture(scope="session")
def plan_of() -> Callable[..., Plan]:
    return make_plan_of


@pytest.fixture(scope="session")
def node() -> Callable[..., NodeFacts]:
    return make_node
