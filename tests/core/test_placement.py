"""The one rule of who goes where, step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from exaslurm.core.filling import fill
from exaslurm.core.placement import Demand, Room, Rooms
from exaslurm.core.spread import Survival


def demand(shard: str = "a", *, model: str = "m", gpus: int = 1, most: int = 16) -> Demand:
    return Demand(model=model, shard=shard, gpus=gpus, cores=1, mem_mib=1, max_per_node=most)


def rooms(
    gpus: Sequence[int],
    leaves: Sequence[str] = (),
    *,
    apart: dict[tuple[str, str], int] | None = None,
) -> Rooms:
    """Nodes n0, n1, ... with so many GPUs, below leaf switches that are below one spine."""
    return Rooms(
        [
            Room(
                name=f"n{order}", order=order, gpus=count, cores=64, mem_mib=64,
                switch=leaves[order] if leaves else None,
                switches=frozenset({"spine", leaves[order]}) if leaves else frozenset(),
            )
            for order, count in enumerate(gpus)
        ],
        apart=apart,
    )  # fmt: skip


def places(where: Rooms, wanted: Sequence[Demand]) -> list[str]:
    filling = fill(where, [(index, one) for index, one in enumerate(wanted)])
    assert not filling.homeless
    found = {index: room.name for index, _, (room,) in filling.placed}
    return [found[index] for index in range(len(wanted))]


def test_the_first_go_to_the_roomiest_nodes_and_the_rest_to_the_emptiest() -> None:
    assert places(rooms([2, 8, 4, 4]), [demand()] * 6) == ["n1", "n2", "n3", "n0", "n0", "n1"]


def test_the_needs_of_all_shards_come_before_the_rest_of_any() -> None:
    # Shard a would fill the only node that can keep b's replicas apart.
    wanted = [demand("a")] * 5 + [demand("b")] * 3
    found = places(rooms([3, 3, 2]), wanted)
    for shard in ("a", "b"):
        mine = {node for node, one in zip(found, wanted, strict=True) if one.shard == shard}
        assert mine == {"n0", "n1", "n2"}


def test_another_switch_comes_before_more_room() -> None:
    found = places(rooms([8, 8, 1, 8], ["l1", "l1", "l2", "l1"]), [demand()] * 3)
    assert found[:2] == ["n0", "n2"]
    assert found[2] in ("n1", "n3")


def test_two_change_places_where_a_shard_came_too_late() -> None:
    # Both replicas of b would be below l1, whose loss a can bear.
    found = places(
        rooms([1, 2, 1, 1], ["l1", "l2", "l1", "l1"]), [demand("a")] * 3 + [demand("b")] * 2
    )
    for shard, mine in (("a", found[:3]), ("b", found[3:])):
        assert "n1" in mine, shard
        assert len(set(mine)) == len(mine)
    # Without a node elsewhere nothing helps, and nothing is moved in vain.
    assert len(set(places(rooms([2, 2], ["l1", "l1"]), [demand()] * 2))) == 2


def test_what_is_wanted_apart_bounds_what_is_taken_for_it() -> None:
    # The plan has put most of a into other cells: one node will do for it here.
    apart = {("m", "a"): 1, ("m", "b"): 2}
    found = places(rooms([4, 1], apart=apart), [demand("a")] * 2 + [demand("b")] * 2)
    assert sorted(found[2:]) == ["n0", "n1"]


def test_large_ones_first_and_barred_nodes_never() -> None:
    where = rooms([4, 4])
    where.rooms[0].barred = frozenset({"big"})
    wanted = [demand(model="small")] * 4 + [demand(model="big", gpus=4)]
    found = places(where, wanted)
    assert found == ["n0"] * 4 + ["n1"]


def test_nothing_to_outlive_is_just_even_use() -> None:
    where = rooms([8, 8, 8], ["l1", "l1", "l2"])
    where.survival = Survival(nodes=0, switches=0, cells=0)
    # The last one goes below the switch that carries fewest.
    assert Counter(places(where, [demand()] * 7)) == {"n0": 2, "n1": 2, "n2": 3}
