"""Replicas over cells: few changes, whole cells free, shards in more than one cell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exaslurm.core.plan import (
    CellPlan,
    GatewayPlan,
    NodeEnvironment,
    Plan,
    PortPolicy,
    RayPlan,
    ReplicaSet,
    TimeoutPlan,
)
from exaslurm.core.scale import Scale
from exaslurm.core.sharing import planned, share
from exaslurm.core.spread import Survival

CELLS = ("c000", "c001", "c002")


@pytest.fixture
def plan() -> Plan:
    """Three cells with room for four replicas of ``m:a`` and two of ``m:b`` each."""
    sets = (
        ReplicaSet(model="m", shard="a", count=4),
        ReplicaSet(model="m", shard="b", count=2),
    )
    cells = tuple(
        CellPlan(name=name, index=index, components=(), replica_sets=sets)
        for index, name in enumerate(CELLS)
    )
    return Plan(
        deployment="d",
        site="lab",
        layout="het",
        models=(),
        cells=cells,
        node=NodeEnvironment(
            python="python", tmp="/tmp", shared="/s", local=None, interface=None, host_suffix=""
        ),
        ports=PortPolicy(),
        ray=RayPlan(enabled=False, start_timeout_s=1, object_store_mib=1),
        timeouts=TimeoutPlan(nodes_s=1, stage_s=1, ready_s=1, drain_s=1),
        gateway=GatewayPlan(home="login", bind="", port=0, start_with_submit=False),
    )


def a_counts(plan: Plan, scale: Scale, living=frozenset()) -> list[int]:
    shares = share(plan, scale, living)
    return [(shares.get(name) or {}).get("m:a", 0) for name in CELLS]


def test_without_a_wish_every_cell_runs_all(plan: Plan) -> None:
    assert planned(plan) == {"m:a": 12, "m:b": 6}
    assert share(plan, None, set()) == dict.fromkeys(CELLS)
    assert share(plan, Scale(replicas={"m:a": 99}), set()) == dict.fromkeys(CELLS)


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, [0, 0, 0]),
        (1, [1, 0, 0]),
        (2, [1, 1, 0]),
        (7, [4, 3, 0]),
        (8, [4, 4, 0]),
        (9, [4, 4, 1]),
        (11, [4, 4, 3]),
    ],
)
def test_two_cells_then_one_after_the_other(plan: Plan, count: int, expected: list[int]) -> None:
    assert a_counts(plan, Scale(replicas={"m:a": count, "m:b": 0})) == expected


def test_as_many_cells_as_survival_asks_for(plan: Plan) -> None:
    one = replace(plan, survival=Survival(cells=0))
    assert a_counts(one, Scale(replicas={"m:a": 3, "m:b": 0})) == [3, 0, 0]
    three = replace(plan, survival=Survival(cells=2))
    assert a_counts(three, Scale(replicas={"m:a": 3, "m:b": 0})) == [1, 1, 1]


def test_shards_use_the_same_cells(plan: Plan) -> None:
    shares = share(plan, Scale(replicas={"m:a": 3, "m:b": 3}), set())
    assert set(shares) == {"c000", "c001"}


def test_one_more_or_one_less_changes_one_cell(plan: Plan) -> None:
    cells: dict = {}
    before = [0, 0, 0]
    for count in [*range(1, 12), *range(10, -1, -1)]:
        scale = Scale(replicas={"m:a": count, "m:b": 0}, cells=cells)
        shares = share(plan, scale, set(cells))
        cells = {name: counts for name, counts in shares.items() if counts is not None}
        after = [(cells.get(name) or {}).get("m:a", 0) for name in CELLS]
        assert sum(after) == count
        assert sum(abs(a - b) for a, b in zip(after, before, strict=True)) == 1
        before = after


def test_a_cell_that_lives_keeps_what_it_runs(plan: Plan) -> None:
    cells = {"c001": {"m:a": 4}, "c002": {"m:a": 4}}
    scale = Scale(replicas={"m:a": 9, "m:b": 0}, cells=cells)
    assert a_counts(plan, scale, {"c001", "c002"}) == [1, 4, 4]
    # The last one in is the first one out.
    fewer = Scale(replicas={"m:a": 8, "m:b": 0}, cells={**cells, "c000": {"m:a": 1}})
    assert a_counts(plan, fewer, set(CELLS)) == [0, 4, 4]


def test_what_a_dead_cell_ran_goes_to_those_that_live(plan: Plan) -> None:
    cells = {"c000": {"m:a": 2}, "c001": {"m:a": 2}, "c002": {"m:a": 0, "m:b": 1}}
    scale = Scale(replicas={"m:a": 4, "m:b": 1}, cells=cells)
    assert a_counts(plan, scale, {"c001", "c002"}) == [0, 2, 2]
    # Without another one that lives, the cell is wanted as before.
    assert a_counts(plan, Scale(replicas={"m:a": 4, "m:b": 0}, cells=cells), {"c001"}) == [2, 2, 0]
