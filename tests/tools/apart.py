"""Small deployments, and whether any assignment of their replicas would outlive losses.

Nodes have room for so many replicas of one GPU each; all of it is tried.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from exaslurm.bind.binder import bind_cell
from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.facts import GpuFact, NodeFacts
from exaslurm.core.plan import CellPlan, ComponentPlan, Plan
from exaslurm.core.spread import Standing
from exaslurm.plan.planner import PlanContext, make_plan
from exaslurm.site.model import Site
from exaslurm.spec.load import load_spec

CONTEXT = PlanContext(user="u", home="/home/u", python="/usr/bin/python3")


@dataclass(frozen=True)
class Case:
    """Kinds of node by their GPUs, nodes of each kind, cells, replicas of each shard; more keys of
    the spec, and of each entry of ``workers``."""

    gpus: tuple[int, ...]
    nodes: tuple[int, ...]
    cells: int
    shards: tuple[int, ...]
    more: str = ""
    workers: str = ""

    def plan(self) -> Plan:
        """PlanError if there is no room, or what is demanded cannot be."""
        site = site_of(
            {f"k{i}": {"cpus": 64, "mem_gib": 512, "gpus": n} for i, n in enumerate(self.gpus)}
        )
        workers = ", ".join(
            f"{{kind: k{i}, nodes: {nodes}, nodes_per_cell: {-(-nodes // self.cells)}"
            f"{self.workers}}}"
            for i, nodes in enumerate(self.nodes)
        )
        shards = ", ".join(f"{{name: s{i}, replicas: {n}}}" for i, n in enumerate(self.shards))
        text = (
            "schema: exaslurm/v1\ndeployment: d\nsite: s\n"
            f"workers: [{workers}]\n{self.more}models:\n"
            "  - name: m\n    engine: {kind: simulated}\n"
            "    per_replica: {gpus: 1, cores: 1, mem_gib: 1}\n"
            f"    shards: [{shards}]\n"
        )
        return make_plan(load_spec(Path("/d.yaml"), text), site, CONTEXT)


def site_of(kinds: Mapping[str, Mapping[str, int]]) -> Site:
    """A site with these node kinds, and one for heads."""
    return Site.model_validate(
        {
            "schema": "exaslurm/site/v1",
            "name": "s",
            "node_kinds": {**kinds, "cpu": {"cpus": 16, "mem_gib": 64}},
        }
    )


def random_case(random: random.Random, *, most_nodes: int = 4) -> Case:
    """One or two kinds, up to four cells, shards of 2, 3 and 5 replicas."""
    kinds = random.choice([1, 2])
    return Case(
        gpus=tuple(random.choice([1, 2, 3, 4]) for _ in range(kinds)),
        nodes=tuple(random.randint(1, most_nodes) for _ in range(kinds)),
        cells=random.choice([1, 2, 3, 4]),
        shards=tuple(random.choice([2, 3, 5]) for _ in range(random.randint(1, 4))),
    )


def worker_places(plan: Plan) -> list[tuple[CellPlan, ComponentPlan, int]]:
    """Cell, component and place in it of every node that carries replicas."""
    return [
        (cell, part, order)
        for cell in plan.cells
        for part in cell.components
        if part.role != "head"
        for order in range(part.nodes)
    ]


def granted(
    cell: CellPlan, part: ComponentPlan, order: int, switches: Sequence[str] = ()
) -> NodeFacts:
    """A node that has exactly what was asked for."""
    return NodeFacts(
        node=f"{cell.name}-{part.het_group}-{order}",
        het_group=part.het_group,
        order=order,
        address="10.0.0.1",
        agent_port=20010,
        port_base=20000,
        cpus=tuple(range(part.cpus_per_node)),
        cpus_granted=part.cpus_per_node,
        mem_mib=part.mem_mib_per_node or 0,
        gpus=tuple(GpuFact(visible_id=str(i), vendor="nvidia") for i in range(part.gpus_per_node)),
        switch=switches[-1] if switches else None,
        switches=tuple(switches),
    )


def bound(plan: Plan, nodes: Sequence[tuple[CellPlan, NodeFacts]]) -> list[ReplicaBinding]:
    """All replicas of all cells."""
    return [
        replica
        for cell in plan.cells
        for replica in bind_cell(
            plan, cell, [facts for one, facts in nodes if one is cell]
        ).replicas
    ]


def possible(
    room: Sequence[int],
    shards: Sequence[int],
    *,
    cells: Sequence[int],
    below: Sequence[frozenset[str]] | None = None,
) -> bool:
    """Whether replicas can be given to nodes with ``room`` so that each shard is on as many of
    three nodes and of two cells as it has replicas for and, with ``below`` (the switches above
    each node, without those above all), not below one switch."""

    def ways(count: int, left: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(left) == 1:
            if count <= left[0]:
                yield (count,)
            return
        for here in range(min(count, left[0]) + 1):
            for rest in ways(count - here, left[1:]):
                yield (here, *rest)

    def good(count: int, way: tuple[int, ...]) -> bool:
        used = [node for node, here in enumerate(way) if here]
        return (
            len(used) >= min(count, 3)
            and len({cells[node] for node in used}) >= min(count, 2, len(set(cells)))
            and not (below and frozenset.intersection(*(below[node] for node in used)))
        )

    @functools.lru_cache(None)
    def from_shard(index: int, left: tuple[int, ...]) -> bool:
        return index == len(shards) or any(
            from_shard(index + 1, tuple(a - b for a, b in zip(left, way, strict=True)))
            for way in ways(shards[index], left)
            if good(shards[index], way)
        )

    return from_shard(0, tuple(room))


def standing(replica: ReplicaBinding, cell: str, above: Mapping[str, Sequence[str]]) -> Standing:
    """Where a replica stands."""
    return Standing(
        shard=f"{replica.model}:{replica.shard}",
        cell=cell,
        nodes=frozenset(replica.nodes),
        switches=frozenset(name for node in replica.nodes for name in above[node]),
    )
