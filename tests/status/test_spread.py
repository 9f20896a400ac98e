"""What shards outlive, from what the cells say of their nodes and replicas."""

from __future__ import annotations

from typing import Any

import pytest

from exaslurm.core.cell import NodeState, ReplicaStatus
from exaslurm.status.model import CellStatus
from exaslurm.status.spread import spread_of
from tests.tools import plans


def cell(name: str, places: dict[str, str], *, leaf: str | None, **states: str) -> CellStatus:
    """A cell whose replicas (by id) are on nodes, all below one leaf switch."""
    nodes = [("head", 0), *((node, 1) for node in dict.fromkeys(places.values()))]
    return CellStatus(
        name=name, phase="ready", source="controller", cause=None, remedy=None, job=None,
        nodes_planned=3, nodes_joined=3, replicas_planned=3, replicas_ready=3,
        nodes=tuple(
            NodeState(
                node=f"{name}-{node}", het_group=group, state="joined", address="10.0.0.1",
                switches=("spine", leaf) if leaf and group else (),
            )
            for node, group in nodes
        ),
        replicas=tuple(
            ReplicaStatus(
                id=replica, model="m", shard="a", served_names=("m",), node=f"{name}-{node}",
                url="http://x", state=states.get(replica, "ready"),  # type: ignore[arg-type]
            )
            for replica, node in places.items()
        ),
    )  # fmt: skip


@pytest.fixture
def plan() -> Any:
    parts = (plans.make_component(0, "head"), plans.make_component(1, "worker", nodes=2))
    return plans.make_plan(
        models=[plans.make_model()], cells=plans.make_cells(*parts, count=2, replicas=[])
    )


def test_over_all_cells(plan: Any) -> None:
    cells = [
        cell("c000", {"r0": "n1", "r1": "n2"}, leaf="l1"),
        cell("c001", {"r2": "n1"}, leaf="l2"),
    ]
    assert spread_of(plan, cells) == (
        "every shard outlives the loss of any 2 nodes, any switch or any cell (proved)",
    )


def test_both_cells_below_one_switch(plan: Any) -> None:
    cells = [
        cell("c000", {"r0": "n1", "r1": "n2"}, leaf="l1"),
        cell("c001", {"r2": "n1"}, leaf="l1"),
    ]
    (sentence,) = spread_of(plan, cells)
    assert sentence.endswith("(proved; all are below one switch)")


def test_a_failed_replica_does_not_count(plan: Any) -> None:
    cells = [
        cell("c000", {"r0": "n1", "r1": "n2"}, leaf="l1"),
        cell("c001", {"r2": "n1"}, leaf="l2", r2="failed"),
    ]
    assert "m:a may be lost with 1 cell (c000): its 2 replicas depend on 1 cell, 2 are needed" in (
        spread_of(plan, cells)
    )


def test_a_cell_that_says_nothing_of_its_nodes(plan: Any) -> None:
    cells = [
        cell("c000", {"r0": "n1", "r1": "n2"}, leaf="l1"),
        cell("c001", {"r2": "n1"}, leaf=None),
    ]
    (sentence,) = spread_of(plan, cells)
    assert sentence.endswith("(proved; nothing is known of switches)")
    assert spread_of(plan, []) == ()
