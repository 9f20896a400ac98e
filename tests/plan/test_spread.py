"""What holds for every plan that can be made: counts, spread, and room on each node."""

from __future__ import annotations

import math
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from exaslurm.bind.binder import bind_cell
from exaslurm.core.facts import GpuFact, NodeFacts
from exaslurm.core.plan import Plan
from exaslurm.errors import PlanError
from exaslurm.plan.planner import PlanContext, make_plan
from exaslurm.site.model import Site
from exaslurm.spec.load import load_spec
from exaslurm.spec.model import Spec

CONTEXT = PlanContext(user="u", home="/home/u", python="/usr/bin/python3")

kinds = st.fixed_dictionaries(
    {"cpus": st.integers(4, 64), "mem_gib": st.integers(16, 256), "gpus": st.integers(1, 8)}
)
models = st.fixed_dictionaries(
    {
        "gpus": st.integers(0, 4),
        "cores": st.integers(1, 8),
        "mem_gib": st.integers(1, 32),
        "most": st.integers(1, 16),
        "replicas": st.lists(st.integers(1, 20), min_size=1, max_size=3),
    }
)


def site_of(kind: dict[str, int], *, hetjobs: bool = True) -> Site:
    data = {
        "schema": "exaslurm/site/v1",
        "name": "s",
        "slurm": {"hetjobs": hetjobs},
        "node_kinds": {"gpu": kind, "cpu": {"cpus": 16, "mem_gib": 64}},
    }
    return Site.model_validate(data)


def spec_of(nodes: int, per_cell: int, entries: list[dict[str, object]]) -> Spec:
    lines = [
        "schema: exaslurm/v1",
        "deployment: d",
        "site: s",
        f"workers: {{kind: gpu, nodes: {nodes}, nodes_per_cell: {per_cell}}}",
        "models:",
    ]
    for index, entry in enumerate(entries):
        replicas = entry["replicas"]
        assert isinstance(replicas, list)
        shards = ", ".join(f"{{name: s{i}, replicas: {n}}}" for i, n in enumerate(replicas))
        lines += [
            f"  - name: m{index}",
            "    engine: {kind: simulated}",
            "    per_replica:",
            *(f"      {key}: {entry[key]}" for key in ("gpus", "cores", "mem_gib")),
            f"    max_replicas_per_node: {entry['most']}",
            f"    shards: [{shards}]",
        ]
    return load_spec(Path("/d.yaml"), "\n".join(lines))


@settings(deadline=None, max_examples=150)
@given(
    kind=kinds,
    nodes=st.integers(1, 12),
    per_cell=st.integers(1, 12),
    entries=st.lists(models, min_size=1, max_size=3),
    hetjobs=st.booleans(),
)
def test_every_plan(
    kind: dict[str, int],
    nodes: int,
    per_cell: int,
    entries: list[dict[str, object]],
    hetjobs: bool,
) -> None:
    spec, site = spec_of(nodes, per_cell, entries), site_of(kind, hetjobs=hetjobs)
    try:
        plan = make_plan(spec, site, CONTEXT)
    except PlanError:
        return  # too much asked: test_planner.py looks at the messages
    check_counts(spec, plan)
    check_nodes(plan, nodes, per_cell)
    check_asked(plan, kind)
    check_binding(plan)
    assert make_plan(spec, site, CONTEXT) == plan


def check_counts(spec: Spec, plan: Plan) -> None:
    for model in spec.models:
        for shard in model.shards:
            counts = [
                item.count
                for cell in plan.cells
                for item in cell.replica_sets
                if (item.model, item.shard) == (model.name, shard.name)
            ]
            assert sum(counts) == shard.replicas
            assert all(count > 0 for count in counts)


def check_nodes(plan: Plan, nodes: int, per_cell: int) -> None:
    sizes = [cell.components[-1].nodes for cell in plan.cells]
    assert sum(sizes) == nodes
    assert max(sizes) <= per_cell
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == math.ceil(nodes / min(per_cell, nodes))
    assert [cell.index for cell in plan.cells] == list(range(len(sizes)))


def check_asked(plan: Plan, kind: dict[str, int]) -> None:
    for cell in plan.cells:
        part = cell.components[-1]
        assert 1 <= part.cpus_per_node <= kind["cpus"]
        assert 0 <= part.gpus_per_node <= kind["gpus"]
        assert (part.mem_mib_per_node or 0) <= kind["mem_gib"] * 1024
        need = [(plan.model(item.model).slot, item.count) for item in cell.replica_sets]
        assert sum(slot.gpus * count for slot, count in need) <= part.gpus_per_node * part.nodes
        assert sum(slot.cores * count for slot, count in need) <= part.cpus_per_node * part.nodes


def check_binding(plan: Plan) -> None:
    """On nodes that have exactly what was asked for, every replica gets cores of its own."""
    for cell in plan.cells:
        part = cell.components[-1]
        nodes = [
            NodeFacts(
                node=f"n{order}",
                het_group=part.het_group,
                order=order,
                address="10.0.0.1",
                agent_port=20010,
                port_base=20000,
                cpus=tuple(range(part.cpus_per_node)),
                cpus_granted=part.cpus_per_node,
                mem_mib=part.mem_mib_per_node or 0,
                gpus=tuple(
                    GpuFact(visible_id=str(gpu), vendor="nvidia")
                    for gpu in range(part.gpus_per_node)
                ),
            )
            for order in range(part.nodes)
        ]
        binding = bind_cell(plan, cell, nodes)
        assert len(binding.replicas) == sum(item.count for item in cell.replica_sets)
        assert all(replica.pinned for replica in binding.replicas)
        assert binding.notes == ()


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 40))
def test_equal_replicas_are_spread_evenly(cells: int, per_cell: int, replicas: int) -> None:
    entry = {"gpus": 0, "cores": 1, "mem_gib": 1, "most": 16, "replicas": [replicas]}
    nodes = cells * per_cell
    if replicas > 16 * nodes:
        return
    plan = make_plan(
        spec_of(nodes, per_cell, [entry]),
        site_of({"cpus": 64, "mem_gib": 256, "gpus": 1}),
        CONTEXT,
    )
    counts = [sum(item.count for item in cell.replica_sets) for cell in plan.cells]
    assert max(counts) - min(counts) <= 1
