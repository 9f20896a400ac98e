"""Which nodes a replica over several nodes gets: few switches, all in one cell. Pure.

Every token of such a replica crosses the network between its nodes, so nearness comes before even
use: one switch if one has enough nodes with room, else as few as possible.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from exaslurm.core.placement import Demand, Room, Rooms


def choose_rooms(
    rooms: Rooms, demand: Demand, *, share: bool = False, avoid: Collection[str] = ()
) -> tuple[Room, ...]:
    """The ``demand.nodes`` nodes for one replica in the order of its ranks; empty if there are
    not so many with room.

    Among switches that suffice: the nodes with fewest replicas, then the switch with least to
    spare, then the first. ``share`` and ``avoid`` as in ``Rooms.choose``.
    """
    if demand.nodes == 1:
        room = rooms.choose(demand, share=share, avoid=avoid)
        return () if room is None else (room,)
    by_switch: dict[str | None, list[Room]] = {}
    for room in rooms.rooms:
        if room.name not in avoid and room.fits(demand, share=share):
            by_switch.setdefault(room.switch, []).append(room)
    groups = [_best_first(found, demand) for found in by_switch.values()]
    enough = [group for group in groups if len(group) >= demand.nodes]
    if enough:
        chosen = min(enough, key=lambda group: _cost(group, demand))[: demand.nodes]
    else:
        groups.sort(key=lambda group: (-len(group), group[0].order))
        chosen = [room for group in groups for room in group][: demand.nodes]
    if len(chosen) < demand.nodes:
        return ()
    return tuple(sorted(chosen, key=lambda room: room.order))


def _best_first(rooms: Sequence[Room], demand: Demand) -> list[Room]:
    shard = (demand.model, demand.shard)
    return sorted(rooms, key=lambda room: (room.replicas, room.of_shard[shard], room.order))


def _cost(group: Sequence[Room], demand: Demand) -> tuple[int, int, int, int]:
    taken = group[: demand.nodes]
    shard = (demand.model, demand.shard)
    return (
        sum(room.replicas for room in taken),
        sum(room.of_shard[shard] for room in taken),
        len(group),
        taken[0].order,
    )
