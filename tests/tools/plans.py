"""Plans made by hand. Every field has a value that suits most tests: a test names only those
that it is about. Plans come unsealed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from exaslurm.core.plan import (
    CellPlan,
    ComponentPlan,
    EnginePlan,
    GatewayPlan,
    Layout,
    ModelPlan,
    ModelSource,
    NodeEnvironment,
    Plan,
    PortPolicy,
    RayPlan,
    ReplicaSet,
    Role,
    ShardPlan,
    SlotTemplate,
    TimeoutPlan,
)

_NO_SOURCE = ModelSource(kind="none", value="")
_SIMULATED = EnginePlan(kind="simulated", device="cpu")


def make_model(
    name: str = "m",
    *,
    source: ModelSource = _NO_SOURCE,
    engine: EnginePlan = _SIMULATED,
    tensor: int = 1,
    pipeline: int = 1,
    gpus: int = 0,
    cores: int = 1,
    mem_gib: float = 1.0,
    max_replicas_per_node: int = 16,
    shard: str = "base",
    lora: str | None = None,
) -> ModelPlan:
    """A model of one shard, served as ``name`` and as ``name:shard``."""
    return ModelPlan(
        name=name,
        source=source,
        engine=engine,
        tensor=tensor,
        pipeline=pipeline,
        slot=SlotTemplate(gpus=gpus, cores=cores, mem_gib=mem_gib),
        max_replicas_per_node=max_replicas_per_node,
        shards=(ShardPlan(name=shard, served_names=(name, f"{name}:{shard}"), lora=lora),),
    )


def make_component(
    het_group: int = 0,
    role: Role = "both",
    *,
    kind: str = "cpu",
    nodes: int = 1,
    min_nodes: int | None = None,
    cpus_per_node: int = 2,
    mem_mib_per_node: int | None = None,
    gpus_per_node: int = 0,
    directives: tuple[tuple[str, str | None], ...] = (),
) -> ComponentPlan:
    """A component that needs all of its nodes where ``min_nodes`` is not given."""
    return ComponentPlan(
        het_group=het_group,
        role=role,
        kind=kind,
        nodes=nodes,
        min_nodes=nodes if min_nodes is None else min_nodes,
        cpus_per_node=cpus_per_node,
        mem_mib_per_node=mem_mib_per_node,
        gpus_per_node=gpus_per_node,
        directives=directives,
    )


def make_cells(
    *components: ComponentPlan, count: int = 1, replicas: Sequence[tuple[str, str, int]] = ()
) -> tuple[CellPlan, ...]:
    """``count`` like cells. ``replicas`` are triples of model, shard and how many in each cell."""
    sets = tuple(ReplicaSet(model=model, shard=shard, count=n) for model, shard, n in replicas)
    return tuple(
        CellPlan(name=f"c{index:03d}", index=index, components=components, replica_sets=sets)
        for index in range(count)
    )


def make_environment(
    *,
    python: str = sys.executable,
    tmp: str = "/tmp",
    shared: str = "/tmp",
    local: str | None = None,
    interface: str | None = "loopback",
    host_suffix: str = "",
    env: Mapping[str, str] | None = None,
    prologue: Sequence[str] = (),
) -> NodeEnvironment:
    """An environment of nodes that all are this host."""
    return NodeEnvironment(
        python=python,
        tmp=tmp,
        shared=shared,
        local=local,
        interface=interface,
        host_suffix=host_suffix,
        env=env or {},
        prologue=tuple(prologue),
    )


def make_plan(
    *,
    deployment: str = "d",
    site: str = "s",
    layout: Layout = "het",
    models: Sequence[ModelPlan] = (),
    cells: Sequence[CellPlan] = (),
    node: NodeEnvironment | None = None,
    first_port: int = 20000,
    last_port: int = 31999,
    ray: bool = False,
    ray_start_timeout_s: float = 10.0,
    object_store_mib: int = 100,
    nodes_s: float = 10.0,
    stage_s: float = 10.0,
    ready_s: float = 10.0,
    drain_s: float = 1.0,
    start_with_submit: bool = False,
    poll_floor_s: float = 10.0,
) -> Plan:
    """A plan, unsealed, with a router on loopback at a port that the system chooses."""
    return Plan(
        deployment=deployment,
        site=site,
        layout=layout,
        models=tuple(models),
        cells=tuple(cells),
        node=node or make_environment(),
        ports=PortPolicy(first=first_port, last=last_port),
        ray=RayPlan(
            enabled=ray, start_timeout_s=ray_start_timeout_s, object_store_mib=object_store_mib
        ),
        timeouts=TimeoutPlan(nodes_s=nodes_s, stage_s=stage_s, ready_s=ready_s, drain_s=drain_s),
        gateway=GatewayPlan(
            home="login", bind="127.0.0.1", port=0, start_with_submit=start_with_submit
        ),
        poll_floor_s=poll_floor_s,
    )
