"""Replicas over several nodes, and tensor-parallel groups on linked GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exaslurm.bind.binder import bind_cell, choose_node
from exaslurm.core.binding import CellBinding, ReplicaBinding
from exaslurm.core.codec import dumps, loads
from exaslurm.core.facts import NodeFacts
from exaslurm.core.plan import Plan
from exaslurm.core.topology import GpuLink
from exaslurm.errors import BindingMismatch
from tests.bind.conftest import make_model, make_node, make_plan_of

Make = Any


def split(made: Any, tensor: int, pipeline: int = 1, *, nodes: int = 1) -> Any:
    return dataclasses.replace(made, tensor=tensor, pipeline=pipeline, nodes=nodes)


def linked(facts: NodeFacts, *pairs: tuple[int, int]) -> NodeFacts:
    links = tuple(GpuLink(a=a, b=b, kind="nvlink", lanes=4) for a, b in pairs)
    return dataclasses.replace(facts, topology=dataclasses.replace(facts.topology, links=links))


@pytest.fixture
def pairs(model: Make, plan_of: Make) -> Plan:
    """Two replicas that take two whole nodes each, on five nodes."""
    large = split(model("m", gpus=4, cores=8), 4, 2, nodes=2)
    plan: Plan = plan_of([large], [("m", "a", 2)], nodes=5)
    return plan


def nodes_of(node: Make, leaves: str) -> list[NodeFacts]:
    return [node(i, gpus=4, switch=leaf) for i, leaf in enumerate(leaves)]


def test_parts_of_a_replica_are_on_different_nodes_of_one_switch(pairs: Plan, node: Make) -> None:
    binding = bind_cell(pairs, pairs.cells[0], nodes_of(node, "abacb"))
    assert [replica.nodes for replica in binding.replicas] == [
        ("n1000", "n1002"),
        ("n1001", "n1004"),
    ]
    for replica in binding.replicas:
        assert [part.rank for part in replica.parts()] == [0, 1]
        assert all(len(part.gpus) == 4 and len(part.cores) == 8 for part in replica.parts())
        assert all(part.id == replica.id for part in replica.parts())
        assert replica.address == replica.ranks[0].address
    assert loads(CellBinding, dumps(binding), where="test") == binding


def test_each_part_has_its_own_nodes_address_and_port(pairs: Plan, node: Make) -> None:
    (first, _) = bind_cell(pairs, pairs.cells[0], nodes_of(node, "aaaaa")).replicas
    assert [(part.node, part.address, part.port) for part in first.parts()] == [
        ("n1000", "10.0.1.1", 20020),
        ("n1001", "10.0.1.2", 20020),
    ]
    with pytest.raises(KeyError):
        first.on_node("n1004")


def test_too_few_nodes_leave_it_out(pairs: Plan, node: Make) -> None:
    binding = bind_cell(pairs, pairs.cells[0], nodes_of(node, "aaa"))
    assert [replica.id for replica in binding.replicas] == ["c000-r0000"]
    assert any("c000-r0001 (m:a) has no place" in note for note in binding.notes)
    with pytest.raises(BindingMismatch, match="on each of 2 nodes"):
        bind_cell(pairs, pairs.cells[0], nodes_of(node, "a"))


def moved(
    plan: Plan, placed: Sequence[ReplicaBinding], nodes: Sequence[NodeFacts], avoid: set[str]
) -> ReplicaBinding:
    return choose_node(
        plan, plan.cells[0], replica="c000-r0000", model="m", shard="a", placed=placed,
        nodes=nodes, avoid=avoid,
    )  # fmt: skip


def test_it_moves_beside_the_others(pairs: Plan, node: Make) -> None:
    nodes = nodes_of(node, "aabbb")
    first, second = bind_cell(pairs, pairs.cells[0], nodes).replicas
    assert (first.nodes, second.nodes) == (("n1000", "n1001"), ("n1002", "n1003"))
    # All four of the others' parts are accounted for: one node is left beside the old ones.
    assert moved(pairs, [second], nodes, {"n1000"}).nodes == ("n1001", "n1004")
    with pytest.raises(BindingMismatch):
        moved(pairs, [second], nodes, {"n1000", "n1001"})


def test_small_replicas_fit_beside_a_part(model: Make, plan_of: Make, node: Make) -> None:
    large = split(model("m", gpus=3, cores=8), 3, 2, nodes=2)
    plan = plan_of([model("k", gpus=1), large], [("k", "a", 2), ("m", "a", 1)], nodes=2)
    binding = bind_cell(plan, plan.cells[0], nodes_of(node, "aa"))
    taken: dict[str, list[str]] = {}
    ports: dict[str, list[int]] = {}
    for replica in binding.replicas:
        for part in replica.parts():
            taken.setdefault(part.node, []).extend(part.gpus)
            ports.setdefault(part.node, []).append(part.port)
    assert all(sorted(gpus) == ["0", "1", "2", "3"] for gpus in taken.values())
    assert all(len(set(found)) == 2 for found in ports.values())


def test_tensor_groups_are_on_linked_gpus(model: Make, plan_of: Make, node: Make) -> None:
    """NVLink bridges join GPUs 0 with 2 and 1 with 3: two stages of two ranks each."""
    plan = plan_of([split(model("m", gpus=4), 2, 2)], [("m", "a", 1)], nodes=1)
    facts = linked(node(0, gpus=4), (0, 2), (1, 3))
    (replica,) = bind_cell(plan, plan.cells[0], [facts]).replicas
    assert {frozenset(replica.gpus[:2]), frozenset(replica.gpus[2:])} == {
        frozenset("02"),
        frozenset("13"),
    }


def test_of_several_nodes_each(model: Make, plan_of: Make, node: Make) -> None:
    plan = plan_of([split(model("m", gpus=4), 2, 4, nodes=2)], [("m", "a", 1)], nodes=2)
    facts = [linked(node(0, gpus=4), (0, 3), (1, 2)), linked(node(1, gpus=4), (0, 1), (2, 3))]
    (replica,) = bind_cell(plan, plan.cells[0], facts).replicas
    first, second = replica.parts()
    assert {frozenset(first.gpus[:2]), frozenset(first.gpus[2:])} == {
        frozenset("03"),
        frozenset("12"),
    }
    assert second.gpus == ("0", "1", "2", "3")
    assert replica.ranks[0].gpus == replica.gpus


def test_a_group_without_links_is_named(model: Make, plan_of: Make, node: Make) -> None:
    plan = plan_of([split(model("m", gpus=4), 4)], [("m", "a", 1)], nodes=1)
    cell = plan.cells[0]
    pairs_only = bind_cell(plan, cell, [linked(node(0, gpus=4), (0, 1), (2, 3))])
    (note,) = [note for note in pairs_only.notes if "direct links" in note]
    assert note.startswith("n1000: c000-r0000: no direct links join GPUs 0, 1, 2, 3")
    # Over others counts, and where nothing has links there is nothing to say.
    chain = bind_cell(plan, cell, [linked(node(0, gpus=4), (0, 1), (1, 2), (2, 3))])
    none = bind_cell(plan, cell, [node(0, gpus=4)])
    assert not [note for note in (*chain.notes, *none.notes) if "direct links" in note]


@given(
    leaves=st.lists(st.sampled_from("abc"), min_size=2, max_size=6),
    wanted=st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=3
    ),
    order=st.randoms(use_true_random=False),
)
def test_nothing_is_given_twice(
    leaves: list[str], wanted: list[tuple[int, int, int]], order: Any
) -> None:
    """Models of 1 to 3 nodes and 1 to 4 GPUs on each, one to three replicas of each."""
    models = [
        split(make_model(f"m{index}", gpus=gpus), gpus, nodes, nodes=nodes)
        for index, (nodes, gpus, _) in enumerate(wanted)
    ]
    sets = [(model.name, "a", item[2]) for model, item in zip(models, wanted, strict=True)]
    plan = make_plan_of(models, sets, nodes=len(leaves) + 1)  # not all are there
    nodes = nodes_of(make_node, "".join(leaves))
    try:
        binding = bind_cell(plan, plan.cells[0], nodes)
    except BindingMismatch:
        return
    for replica in binding.replicas:
        model = plan.model(replica.model)
        assert len(set(replica.nodes)) == len(replica.nodes) == model.nodes
        assert [part.rank for part in replica.parts()] == list(range(model.nodes))
        assert all(len(part.gpus) == model.slot.gpus for part in replica.parts())
    parts = [part for replica in binding.replicas for part in replica.parts()]
    for used in (
        [(part.node, gpu) for part in parts for gpu in part.gpus],
        [(part.node, core) for part in parts for core in part.cores if part.pinned],
        [(part.node, part.port) for part in parts],
    ):
        assert len(set(used)) == len(used)
    order.shuffle(nodes)
    assert bind_cell(plan, plan.cells[0], nodes) == binding
