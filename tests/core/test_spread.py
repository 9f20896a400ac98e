"""The proof of what shards outlive, against trying every loss."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exaslurm.core.spread import Standing, Survival, fatal, prove


def standing(shard: str, cell: str, nodes: str, switches: str = "") -> Standing:
    return Standing(
        shard=shard,
        cell=cell,
        nodes=frozenset(nodes.split()),
        switches=frozenset(switches.split()),
    )


names = st.frozensets(st.sampled_from("abcdef"), min_size=1, max_size=3)


@given(st.lists(names, max_size=6), st.integers(0, 3))
def test_fatal_finds_a_smallest_choice_or_there_is_none(
    sets: list[frozenset[str]], most: int
) -> None:
    found = fatal(sets, most)
    choices = [
        choice
        for size in range(most + 1)
        for choice in itertools.combinations("abcdef", size)
        if all(set(choice) & one for one in sets)
    ]
    if not choices:
        assert found is None
    else:
        assert found is not None
        assert all(set(found) & one for one in sets)
        assert len(found) == len(choices[0])


@st.composite
def deployments(draw: st.DrawFn) -> tuple[list[Standing], dict[str, frozenset[str]], Survival]:
    """Nodes below a tree of switches in a few cells; replicas of one or two nodes."""
    count = draw(st.integers(1, 7))
    cells = draw(st.integers(1, 3))
    above, cell_of = {}, {}
    for number in range(count):
        leaf = draw(st.integers(0, 3))
        above[f"n{number}"] = frozenset({"spine", f"group{leaf % 2}", f"leaf{leaf}"})
        cell_of[f"n{number}"] = f"c{number % cells}"
    standings = []
    for shard in range(draw(st.integers(1, 3))):
        for _ in range(draw(st.integers(1, 5))):
            first = draw(st.sampled_from(sorted(above)))
            mine = [node for node in above if cell_of[node] == cell_of[first]]
            nodes = {first, *draw(st.sets(st.sampled_from(mine), max_size=1))}
            standings.append(
                Standing(
                    shard=f"s{shard}",
                    cell=cell_of[first],
                    nodes=frozenset(nodes),
                    switches=frozenset().union(*(above[node] for node in nodes)),
                )
            )
    survival = Survival(
        nodes=draw(st.integers(0, 3)),
        switches=draw(st.integers(0, 2)),
        cells=draw(st.integers(0, 2)),
    )
    return standings, above, survival


def ended(standings: Sequence[Standing], thing: str, lost: set[str]) -> bool:
    """Whether a loss ends some shard."""
    alive = {
        one.shard
        for one in standings
        if not lost
        & {"nodes": one.nodes, "switches": one.switches, "cells": frozenset({one.cell})}[thing]
    }
    return alive != {one.shard for one in standings}


@settings(deadline=None, max_examples=300)
@given(deployments())
def test_the_proof_is_what_trying_every_loss_finds(
    case: tuple[list[Standing], dict[str, frozenset[str]], Survival],
) -> None:
    standings, above, survival = case
    proof = prove(standings, survival, nodes=above.values())
    above_all = frozenset.intersection(*above.values())
    things = {
        "nodes": sorted(above),
        "switches": sorted(frozenset().union(*above.values()) - above_all),
        "cells": sorted({one.cell for one in standings}),
    }
    for thing, limit in proof.outlived:
        losses = itertools.combinations(things[thing], min(limit, len(things[thing])))
        assert limit > 0
        assert not any(ended(standings, thing, set(loss)) for loss in losses)
    for weak in proof.weak:
        assert len(weak.lost) <= weak.limit
        assert set(weak.lost) <= set(things[weak.thing])
        mine = [one for one in standings if one.shard == weak.shard]
        assert ended(mine, weak.thing, set(weak.lost))
        assert len(mine) == weak.replicas
    for thing in ("nodes", "switches", "cells"):
        told = {what for what, _ in (*proof.outlived, *proof.without)}
        told |= {weak.thing for weak in proof.weak}
        assert (thing in told) == (getattr(survival, thing) > 0)


@pytest.mark.parametrize(
    ("standings", "sentences"),
    [
        (
            [standing("m:a", "c0", f"n{i}") for i in range(3)],
            [("every shard outlives the loss of any 2 nodes (proved; nothing is known of switches; "
             "there is one cell)")],
        ),
        (
            [standing("m:a", f"c{i % 2}", f"n{i}", f"l{i % 2} top") for i in range(3)],
            ["every shard outlives the loss of any 2 nodes, any switch or any cell (proved)"],
        ),
        (
            [standing("m:a", "c0", "n0"), standing("m:b", "c0", "n0")],
            [("m:a and m:b may be lost with 1 node (n0): each has 1 replica, 3 are needed to "
             "outlive any 2 nodes")],
        ),
        (
            [standing("m:a", "c0", "n0"), standing("m:a", "c1", "n1")],
            ["every shard outlives the loss of any cell (proved; nothing is known of switches)",
             ("m:a may be lost with 2 nodes (n0 and n1): it has 2 replicas, 3 are needed to "
             "outlive any 2 nodes")],
        ),
        (
            [standing("m:a", "c0", f"n{i % 2}") for i in range(5)],
            [("m:a may be lost with 2 nodes (n0 and n1): its 5 replicas depend on 2 nodes, 3 are "
             "needed")],
        ),
        (
            [standing("m:a", "c0", f"n{i}", f"l{min(i, 2)} top") for i in (2, 3, 4)]
            + [standing("m:b", "c0", f"n{i}", f"l{min(i, 2)} top") for i in (0, 1, 2)],
            ["every shard outlives the loss of any 2 nodes (proved; there is one cell)",
             "m:a may be lost with 1 switch (l2): its 3 replicas depend on 1 switch, 2 are needed"],
        ),
        (
            [standing(f"m:{name}", "c0", "n0") for name in "abcdefg"],
            [("m:a, m:b, m:c, m:d and 3 more may be lost with 1 node (n0): each has 1 replica, 3 "
             "are needed to outlive any 2 nodes")],
        ),
    ],
)  # fmt: skip
def test_sentences(standings: list[Standing], sentences: list[str]) -> None:
    proof = prove(standings, Survival(), nodes=[one.switches for one in standings])
    assert list(proof.sentences(name_lost=True)) == sentences


def test_switches_are_not_looked_at_where_those_of_a_node_are_not_known() -> None:
    standings = [standing("m:a", "c0", f"n{i}", "l1 top") for i in range(3)]
    nodes = [frozenset({"l1", "top"}), frozenset({"l2", "top"}), frozenset[str]()]
    assert prove(standings, Survival(), nodes=nodes).weak == ()
    (weak,) = prove(standings, Survival(), nodes=nodes[:2]).weak
    assert (weak.thing, weak.lost) == ("switches", ("l1",))
