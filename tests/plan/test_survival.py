"""Replicas apart: whatever can be outlived is, and what cannot is told with the number it takes."""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter

import pytest

from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.plan import Plan
from exaslurm.errors import PlanError
from tests.tools.apart import Case, bound, granted, possible, random_case, worker_places

FEW_NODES = 7  # more cannot be tried out
TRIES = int(os.environ.get("EXASLURM_EXAMPLES", "30"))


def served_without(replicas: list[ReplicaBinding], lost: set[str]) -> set[str]:
    return {replica.shard for replica in replicas if replica.node not in lost}


@pytest.mark.parametrize("seed", range(4))
def test_what_can_be_outlived_is(seed: int) -> None:
    """On nodes of one or two kinds, in up to four cells: any two nodes and any cell."""
    draw, seen = random.Random(seed), Counter[str]()
    while seen["outlives"] < TRIES:
        case = random_case(draw)
        try:
            plan = case.plan()
        except PlanError as error:
            assert "have room" in str(error)  # noqa: PT017 - checked for every plan that is made
            assert sum(case.shards) > sum(g * n for g, n in zip(case.gpus, case.nodes, strict=True))
            continue
        places = worker_places(plan)
        if len(places) > FEW_NODES:
            continue
        room = [case.gpus[int(part.kind[1:])] for _, part, _ in places]
        can = possible(room, case.shards, cells=[cell.index for cell, _, _ in places])
        replicas = bound(plan, [(place[0], granted(*place)) for place in places])
        check_losses(plan, case, replicas, can=can)
        seen["outlives" if can else "cannot"] += 1
    assert seen["cannot"] > 0


def check_losses(plan: Plan, case: Case, replicas: list[ReplicaBinding], *, can: bool) -> None:
    """Try every loss. Where all could be outlived, a shard ends only if it has too few replicas;
    and whatever ends one is told in the plan."""
    shards = {f"s{i}": count for i, count in enumerate(case.shards)}
    assert Counter(replica.shard for replica in replicas) == shards
    told = " ".join(plan.spread)
    nodes = sorted({replica.node for replica in replicas})
    cells = sorted({replica.id.split("-")[0] for replica in replicas})
    losses = [set(pair) for pair in itertools.combinations(nodes, min(2, len(nodes)))]
    by_nodes = {name for lost in losses for name in shards.keys() - served_without(replicas, lost)}
    by_cell = {
        name
        for cell in cells
        for name in shards.keys()
        - served_without(replicas, {node for node in nodes if node.startswith(f"{cell}-")})
    }
    for name in by_nodes:
        assert "3 are needed" in told
        if can:
            assert shards[name] < 3
    assert ("any 2 nodes" in told.split("may be lost")[0]) == (not by_nodes)
    if len(plan.cells) > 1:
        assert not (can and by_cell)
        assert ("any cell (proved" in told) == (not by_cell)
        assert not by_cell or "2 are needed" in told
    else:
        assert "there is one cell" in told or by_nodes


@pytest.mark.parametrize("seed", range(4))
def test_no_switch_ends_a_shard_where_that_can_be(seed: int) -> None:
    """On real nodes below a tree of three levels, all in one cell."""
    draw, tried = random.Random(seed), 0
    while tried < TRIES:
        case = random_case(draw)
        case = Case(case.gpus, case.nodes, 1, case.shards)
        try:
            plan = case.plan()
        except PlanError:
            continue
        places = worker_places(plan)
        leaves, groups = draw.randint(1, 4), draw.randint(1, 2)
        paths = [
            ("spine", f"group{leaf % groups}", f"leaf{leaf}")
            for leaf in (draw.randrange(leaves) for _ in places)
        ]
        above_all = frozenset.intersection(*(frozenset(path) for path in paths))
        below = [frozenset(path) - above_all for path in paths]
        room = [part.gpus_per_node for _, part, _ in places]
        if len(places) > FEW_NODES or not possible(
            room, case.shards, cells=[0] * len(places), below=below
        ):
            continue
        tried += 1
        facts = [granted(*place, path) for place, path in zip(places, paths, strict=True)]
        replicas = bound(plan, [(plan.cells[0], one) for one in facts])
        path_of = dict(zip((one.node for one in facts), below, strict=True))
        for switch in frozenset().union(*below):
            lost = {node for node, path in path_of.items() if switch in path}
            assert len(served_without(replicas, lost)) == len(case.shards), (case, paths, switch)
        for pair in itertools.combinations(sorted(path_of), min(2, len(path_of))):
            for name in {replica.shard for replica in replicas} - served_without(
                replicas, set(pair)
            ):
                assert case.shards[int(name[1:])] < 3


def test_a_shard_of_two_is_told_what_it_takes() -> None:
    plan = Case((4,), (4,), 2, (2, 3)).plan()
    assert plan.spread == (
        (
            "every shard outlives the loss of any cell (proved; switches are looked at when Slurm "
            "has granted nodes)"
        ),
        "m:s0 may be lost with 2 nodes: it has 2 replicas, 3 are needed to outlive any 2 nodes",
    )


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            Case((4,), (4,), 2, (2, 3), "survive: {nodes: 2}\n"),
            (
                "survive.nodes: m:s0 may be lost with 2 nodes: it has 2 replicas, 3 are needed to "
                "outlive any 2 nodes"
            ),
        ),
        (
            Case((4,), (2,), 1, (5,), "survive: {nodes: 2}\n"),
            (
                "survive.nodes: m:s0 may be lost with 2 nodes: its 5 replicas depend on 2 nodes, 3 "
                "are needed"
            ),
        ),
        (
            Case((4,), (3,), 1, (3,), "survive: {cells: 1}\n"),
            "survive.cells: there is one cell: more come of a smaller workers[].nodes_per_cell",
        ),
        (
            Case((4,), (4,), 2, (5,), "survive: {cells: 2}\n"),
            (
                "survive.cells: m:s0 may be lost with 2 cells: its 5 replicas depend on 2 cells, 3 "
                "are needed"
            ),
        ),
        (
            Case((4,), (3,), 1, (3, 1), "survive: {switches: 1}\n"),
            "survive.switches: m:s1: 2 replicas are needed for that",
        ),
        (
            Case((4,), (3,), 1, (3,), "survive: {switches: 1}\n", ", switches: 1@12:00"),
            "survive.switches: workers[].switches: 1 puts the only cell below one switch",
        ),
    ],
)
def test_what_is_demanded_and_cannot_be_is_refused(case: Case, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        case.plan()
    assert str(caught.value) == f"/d.yaml:5: {message}"


def test_what_is_demanded_and_can_be_is_planned() -> None:
    more = "survive: {nodes: 3, cells: 2, switches: 1}\n"
    plan = Case((2,), (6,), 3, (4, 4), more).plan()
    assert plan.survival.demanded == ("nodes", "switches", "cells")
    assert plan.spread[0].startswith("every shard outlives the loss of any 3 nodes or any 2 cells")
    # Nothing is wanted.
    plan = Case((2,), (6,), 3, (1,), "survive: {nodes: 0, cells: 0, switches: 0}\n").plan()
    assert plan.spread == ()
