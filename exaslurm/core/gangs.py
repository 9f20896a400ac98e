"""Which nodes a replica over several nodes gets: near each other, all in one cell. Pure.

Every token of such a replica crosses the network between its nodes, so nearness comes before even
use: one leaf switch if one has enough nodes with room, else the smallest switch above leaves that
has, and there as few leaves as possible.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from exaslurm.core.placement import Demand, Room, Rooms


def choose_rooms(
    rooms: Rooms, demand: Demand, *, share: bool = False, avoid: Collection[str] = ()
) -> tuple[Room, ...]:
    """The ``demand.nodes`` nodes for one replica in the order of its ranks; empty if there are
    not so many with room.

    Among switches of one kind that suffice: the one that carries fewest replicas of the shard
    (its loss takes them all), then the nodes with fewest replicas, then the switch with least to
    spare, then the first. ``share`` and ``avoid`` as in ``Rooms.choose``.
    """
    if demand.nodes == 1:
        room = rooms.choose(demand, share=share, avoid=avoid)
        return () if room is None else (room,)
    free = {
        room.name
        for room in rooms.rooms
        if room.name not in avoid and room.fits(demand, share=share)
    }
    best: list[Room] | None = None
    best_cost: tuple[int, ...] = ()
    for level, below in _switches(rooms.rooms):
        found = _by_leaves([room for room in below if room.name in free], demand)
        if len(found) < demand.nodes:
            continue
        cost = (level, *_cost(below, found, demand))
        if best is None or cost < best_cost:
            best, best_cost = found[: demand.nodes], cost
    return tuple(sorted(best or (), key=lambda room: room.order))


def _switches(rooms: Sequence[Room]) -> Iterator[tuple[int, list[Room]]]:
    """The nodes below each switch, with how far apart they can be: 0 below a leaf, more the more
    nodes there are below another switch. Last, all nodes: something connects them."""
    leaves: dict[str | None, list[Room]] = {}
    others: dict[str, list[Room]] = {}
    for room in rooms:
        leaves.setdefault(room.switch, []).append(room)
        for name in sorted(room.switches - {room.switch or ""}):
            others.setdefault(name, []).append(room)
    for below in leaves.values():
        yield 0, below
    for below in others.values():
        yield len(below), below
    yield len(rooms) + 1, list(rooms)


def _by_leaves(free: Sequence[Room], demand: Demand) -> list[Room]:
    """The nodes in the order in which to take them: from the leaf that has most first, and there
    the one with fewest replicas."""
    shard = (demand.model, demand.shard)
    leaves: dict[str | None, list[Room]] = {}
    for room in sorted(free, key=lambda room: (room.replicas, room.of_shard[shard], room.order)):
        leaves.setdefault(room.switch, []).append(room)
    groups = sorted(leaves.values(), key=lambda group: (-len(group), group[0].order))
    return [room for group in groups for room in group]


def _cost(below: Sequence[Room], found: Sequence[Room], demand: Demand) -> tuple[int, ...]:
    shard = (demand.model, demand.shard)
    taken = found[: demand.nodes]
    return (
        sum(room.of_shard[shard] for room in below),
        sum(room.replicas for room in taken),
        len(found),
        taken[0].order,
    )
