"""Plans and nodes for the binder, as data: no spec and no site is needed for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from exaslurm.core.facts import GpuFact, NodeFacts
from exaslurm.core.plan import ModelPlan, Plan
from exaslurm.core.topology import Core, Gpu, Hca, NodeTopology, NumaNode
from tests.tools import plans


def make_model(
    name: str, *, gpus: int = 0, cores: int = 1, mem_gib: float = 1.0, most: int = 16
) -> ModelPlan:
    return plans.make_model(
        name, gpus=gpus, cores=cores, mem_gib=mem_gib, max_replicas_per_node=most, shard="a"
    )


def make_plan_of(
    models: Sequence[ModelPlan],
    sets: Sequence[tuple[str, str, int]],
    *,
    nodes: int,
    role: Any = "worker",
    layout: Any = "het",
) -> Plan:
    worker = plans.make_component(
        1 if role == "worker" else 0, role, kind="gpu", nodes=nodes, min_nodes=1,
        cpus_per_node=16, gpus_per_node=4,
    )  # fmt: skip
    head = plans.make_component(0, "head")
    return plans.make_plan(
        layout=layout,
        models=models,
        cells=plans.make_cells(*((head, worker) if role == "worker" else (worker,)), replicas=sets),
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
    hcas: Sequence[Hca] = (),
    switch: str | None = None,
) -> NodeFacts:
    """A node with its CPUs dealt over ``numa`` NUMA nodes in runs. ``granted`` -1: all."""
    size = max(1, len(cpus) // numa)
    name = f"n{group}{order:03d}"
    parts = [tuple(cpus[i * size : (i + 1) * size if i < numa - 1 else None]) for i in range(numa)]
    near = [gpu_numa[i] if gpu_numa else None for i in range(gpus)]
    pci = [f"0000:{i + 1:02x}:00.0" for i in range(gpus)]
    return NodeFacts(
        node=name,
        het_group=group,
        order=order,
        address=f"10.0.{group}.{order + 1}",
        agent_port=20010,
        port_base=20000,
        cpus=tuple(cpus),
        cpus_granted=len(cpus) if granted == -1 else granted,
        mem_mib=mem_mib,
        gpus=tuple(
            GpuFact(visible_id=str(i), vendor="nvidia", numa=near[i], pci=pci[i])
            for i in range(gpus)
        ),
        topology=NodeTopology(
            host=name,
            cores=tuple(
                Core(cpus=(cpu,), package=0, numa=i) for i, part in enumerate(parts) for cpu in part
            ),
            numa=tuple(
                NumaNode(index=i, kind="cpu", cpus=part, mem_mib=mem_mib // numa)
                for i, part in enumerate(parts)
            ),
            gpus=tuple(
                Gpu(index=i, vendor="nvidia", numa=near[i], pci=pci[i]) for i in range(gpus)
            ),
            hcas=tuple(hcas),
        ),
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
