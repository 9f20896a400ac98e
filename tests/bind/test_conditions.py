"""Nodes that do not meet a model's conditions carry none of it, and say why."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from exaslurm.bind.binder import bind_cell, choose_node
from exaslurm.core.facts import NodeFacts
from exaslurm.core.plan import CellPlan, Plan
from exaslurm.errors import BindingMismatch

Make = Any


def with_min_nodes(plan: Plan, nodes: int) -> tuple[Plan, CellPlan]:
    cell = plan.cells[0]
    parts = tuple(
        part if part.role == "head" else dataclasses.replace(part, min_nodes=nodes)
        for part in cell.components
    )
    cell = dataclasses.replace(cell, components=parts)
    return dataclasses.replace(plan, cells=(cell,)), cell


def measured(facts: NodeFacts, gbps: str, **measures: float) -> NodeFacts:
    return dataclasses.replace(facts, labels={"ib_gbps": gbps}, measures=measures)


def constrained(model: Make, name: str, *constraints: str, **more: Any) -> Any:
    return dataclasses.replace(model(name, **more), constraints=constraints)


def test_a_slow_node_is_left_out_and_named(model: Make, plan_of: Make, node: Make) -> None:
    plan = plan_of([constrained(model, "m", "ib_gbps >= 100")], [("m", "a", 3)], nodes=4)
    nodes = [measured(node(i), "25" if i == 1 else "200") for i in range(4)]
    binding = bind_cell(plan, plan.cells[0], nodes)
    assert {r.node for r in binding.replicas} == {"n1000", "n1002", "n1003"}
    assert binding.notes == ("n1001 carries no replica of m: ib_gbps >= 100 (ib_gbps is 25 Gbps)",)


def test_other_models_may_use_it(model: Make, plan_of: Make, node: Make) -> None:
    models = [constrained(model, "m", "storage_read_ms <= 2"), model("k")]
    plan = plan_of(models, [("m", "a", 2), ("k", "a", 2)], nodes=2)
    nodes = [measured(node(0), "0", storage_read_ms=1.0), node(1)]
    binding = bind_cell(plan, plan.cells[0], nodes)
    assert [r.node for r in binding.replicas if r.model == "m"] == ["n1000"] * 2
    assert "n1001" in {r.node for r in binding.replicas if r.model == "k"}
    assert binding.notes == (
        "n1001 carries no replica of m: storage_read_ms <= 2 (storage_read_ms is not known there)",
    )


def test_too_few_nodes_meet_it(model: Make, plan_of: Make, node: Make) -> None:
    plan = plan_of([constrained(model, "m", "ib_gbps >= 100", gpus=2)], [("m", "a", 4)], nodes=2)
    plan, cell = with_min_nodes(plan, 2)
    nodes = [measured(node(0, gpus=4), "200"), measured(node(1, gpus=4), "25")]
    with pytest.raises(BindingMismatch) as caught:
        bind_cell(plan, cell, nodes)
    assert "n1001 does not meet ib_gbps >= 100 (ib_gbps is 25 Gbps)" in str(caught.value)
    # One node is enough to begin with: the cell serves with what there is.
    plan, cell = with_min_nodes(plan, 1)
    binding = bind_cell(plan, cell, nodes)
    assert len(binding.replicas) == 2
    assert "c000-r0002 (m:a) has no place" in binding.notes
    # No node at all is not.
    with pytest.raises(BindingMismatch, match="no place for c000-r0000"):
        bind_cell(plan, cell, [measured(one, "25") for one in nodes])


def test_a_replacement_keeps_to_it(model: Make, plan_of: Make, node: Make) -> None:
    plan = plan_of([constrained(model, "m", "ib_gbps >= 100")], [("m", "a", 2)], nodes=3)
    nodes = [measured(node(i), "25" if i == 2 else "200") for i in range(3)]
    binding = bind_cell(plan, plan.cells[0], nodes)
    moved = choose_node(
        plan, plan.cells[0], replica="c000-r0000", model="m", shard="a",
        placed=[binding.replicas[1]], nodes=nodes, avoid={"n1000"},
    )  # fmt: skip
    assert moved.node == "n1001"
    with pytest.raises(BindingMismatch, match="n1002 does not meet ib_gbps >= 100"):
        choose_node(
            plan, plan.cells[0], replica="c000-r0000", model="m", shard="a",
            placed=[], nodes=nodes, avoid={"n1000", "n1001"},
        )  # fmt: skip


def test_a_replacement_keeps_the_shard_apart(model: Make, plan_of: Make, node: Make) -> None:
    plan = plan_of([model("m"), model("k")], [("m", "a", 3), ("k", "a", 1)], nodes=5)
    leaves = ["leaf1", "leaf1", "leaf1", "leaf2", "leaf2"]
    nodes = [node(i, switch=leaf) for i, leaf in enumerate(leaves)]
    binding = bind_cell(plan, plan.cells[0], nodes)
    mine = [r for r in binding.replicas if r.model == "m"]
    (lost,) = [r for r in mine if r.node in ("n1003", "n1004")] or [mine[0]]
    others = [r for r in binding.replicas if r.id != lost.id]
    moved = choose_node(
        plan, plan.cells[0], replica=lost.id, model="m", shard="a",
        placed=others, nodes=nodes, avoid={lost.node},
    )  # fmt: skip
    # The other node of the same switch, though it may carry another model's replica.
    assert {moved.node, lost.node} == {"n1003", "n1004"}


def test_numa_local_is_told_where_it_cannot_be_kept(model: Make, plan_of: Make, node: Make) -> None:
    plan = plan_of([constrained(model, "m", "numa_local", cores=5)], [("m", "a", 3)], nodes=1)
    binding = bind_cell(plan, plan.cells[0], [node(0, numa=2)])
    assert len(binding.replicas) == 3
    assert "c000-r0002 on n1000: numa_local is not kept" in binding.notes
    assert not any("c000-r0000 on" in note for note in binding.notes)
