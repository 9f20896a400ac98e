"""Nodes for replicas over several nodes: near each other, as far as there is room."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from exaslurm.core.gangs import choose_rooms
from exaslurm.core.placement import Demand, Room, Rooms


def demand(nodes: int = 2, *, gpus: int = 4, shard: str = "a") -> Demand:
    return Demand(
        model="m", shard=shard, gpus=gpus, cores=8, mem_mib=1000, max_per_node=4, nodes=nodes
    )


def room(order: int, *above: str, gpus: int = 4) -> Room:
    """``above``: its switches, the leaf last."""
    return Room(
        name=f"n{order}", order=order, switch=above[-1] if above else None, gpus=gpus, cores=64,
        mem_mib=100000, switches=frozenset(above),
    )  # fmt: skip


def names(found: tuple[Room, ...]) -> list[str]:
    return [room.name for room in found]


def placed(rooms: Rooms, wanted: Demand) -> list[str]:
    found = choose_rooms(rooms, wanted)
    for chosen in found:
        rooms.take(chosen, wanted)
    return names(found)


def test_one_leaf_if_one_has_enough() -> None:
    rooms = Rooms([room(0, "s0"), room(1, "s1"), room(2, "s1"), room(3, "s2"), room(4, "s2")])
    assert placed(rooms, demand()) == ["n1", "n2"]
    assert placed(rooms, demand()) == ["n3", "n4"]
    assert placed(rooms, demand()) == []


def test_the_leaf_with_least_to_spare() -> None:
    rooms = Rooms([room(i, "s0" if i < 3 else "s1") for i in range(5)])
    assert placed(rooms, demand()) == ["n3", "n4"]
    assert placed(rooms, demand(3)) == ["n0", "n1", "n2"]


def test_else_the_smallest_switch_above() -> None:
    rooms = Rooms(
        [
            room(0, "top", "left", "s0"),
            room(1, "top", "right", "s1"),
            room(2, "top", "right", "s2"),
            room(3, "top", "left2", "s3"),
        ]
    )
    assert placed(rooms, demand()) == ["n1", "n2"]
    assert placed(rooms, demand()) == ["n0", "n3"]


def test_with_as_few_leaves_as_possible() -> None:
    leaves = ["s0", "s1", "s1", "s1", "s2"]
    rooms = Rooms([room(i, "top", leaf) for i, leaf in enumerate(leaves)])
    assert placed(rooms, demand(4)) == ["n0", "n1", "n2", "n3"]


def test_replicas_of_a_shard_below_different_switches() -> None:
    rooms = Rooms([room(i, "s0" if i < 4 else "s1", gpus=8) for i in range(8)])
    assert placed(rooms, demand()) == ["n0", "n1"]
    assert placed(rooms, demand()) == ["n4", "n5"]
    assert placed(rooms, demand(shard="b")) == ["n2", "n3"]
    assert placed(rooms, demand(shard="b")) == ["n6", "n7"]


def test_unknown_switches_are_one() -> None:
    rooms = Rooms([room(i) for i in range(3)])
    assert placed(rooms, demand()) == ["n0", "n1"]


def test_nodes_to_avoid_and_to_share() -> None:
    rooms = Rooms([room(i, "s0") for i in range(3)])
    assert names(choose_rooms(rooms, demand(), avoid={"n1"})) == ["n0", "n2"]
    assert choose_rooms(rooms, demand(), avoid={"n1", "n2"}) == ()
    greedy = Demand(model="m", shard="a", gpus=0, cores=65, mem_mib=1, max_per_node=1, nodes=2)
    assert choose_rooms(rooms, greedy) == ()
    assert names(choose_rooms(rooms, greedy, share=True)) == ["n0", "n1"]


@given(
    leaves=st.lists(st.integers(0, 3), min_size=1, max_size=7),
    free=st.integers(0, 127),
    nodes=st.integers(2, 4),
)
def test_never_more_leaves_than_need_be(leaves: list[int], free: int, nodes: int) -> None:
    """Compared with every choice that there is."""
    rooms = [
        room(i, "top", f"s{leaf}", gpus=4 if free >> i & 1 else 0) for i, leaf in enumerate(leaves)
    ]
    found = choose_rooms(Rooms(rooms), demand(nodes))
    usable = [one for one in rooms if one.gpus]
    if len(usable) < nodes:
        assert found == ()
        return
    assert len({one.name for one in found}) == nodes
    assert all(one.gpus for one in found)
    fewest = min(
        len({one.switch for one in choice}) for choice in itertools.combinations(usable, nodes)
    )
    assert len({one.switch for one in found}) == fewest
