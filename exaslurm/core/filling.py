"""All replicas of a cell on its nodes: what the planner does with imagined ones and the binder with
those that Slurm granted. Pure and deterministic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic

from exaslurm.core.gangs import choose_rooms
from exaslurm.core.placement import Demand, Room, Rooms, T, in_order


@dataclass(slots=True)
class Filling(Generic[T]):
    """Where replicas went, in the order in which they were placed; ``homeless`` are those without
    room. On the nodes in ``squeezed`` cores or memory have to be shared."""

    placed: list[tuple[T, Demand, tuple[Room, ...]]] = field(default_factory=list)
    homeless: list[tuple[T, Demand]] = field(default_factory=list)
    squeezed: set[str] = field(default_factory=set)


def fill(rooms: Rooms, wanted: Sequence[tuple[T, Demand]], *, share: bool = False) -> Filling[T]:
    """Give every replica its nodes. ``share``: where no node has room, cores and memory may be
    shared."""
    filling: Filling[T] = Filling()
    for item, demand in in_order(wanted, rooms):
        found = choose_rooms(rooms, demand)
        if not found and share:
            found = choose_rooms(rooms, demand, share=True)
            filling.squeezed.update(room.name for room in found)
        if not found:
            filling.homeless.append((item, demand))
            continue
        for room in found:
            rooms.take(room, demand)
        filling.placed.append((item, demand, found))
    while _mend(rooms, filling):
        pass
    return filling


def _mend(rooms: Rooms, filling: Filling[T]) -> bool:
    """Let two replicas change places where that helps a shard for which the nodes it needs were
    taken when its turn came, and does not hurt the other one; false if there are no such two."""
    stands: dict[Demand, list[Room]] = {}
    for _, demand, found in filling.placed:
        if demand.nodes == 1:
            stands.setdefault(demand, []).append(found[0])
    weak = {
        demand: lacks
        for demand, mine in stands.items()
        if (lacks := rooms.weakness(demand, mine)) > (0, 0)
    }
    for demand, lacks in weak.items():
        # Those on the nodes with most of them: the others may be what keeps the shard apart.
        crowded = sorted(_different(stands[demand]), key=lambda room: -stands[demand].count(room))
        for other, theirs in stands.items():
            if other == demand or other.model != demand.model:
                continue
            before = rooms.weakness(other, theirs)
            for there in _different(theirs):
                if not rooms.helps(demand, stands[demand], there):
                    continue
                for here in crowded[: rooms.survival.anchors]:
                    if (
                        rooms.weakness(demand, _moved(stands[demand], here, there)) < lacks
                        and rooms.weakness(other, _moved(theirs, there, here)) <= before
                    ):
                        _exchange(rooms, filling, (here, demand), (there, other))
                        return True
    return False


def _exchange(
    rooms: Rooms, filling: Filling[T], one: tuple[Room, Demand], other: tuple[Room, Demand]
) -> None:
    rooms.exchange(one, other)
    for (old, demand), (new, _) in ((one, other), (other, one)):
        at = next(
            index
            for index, (_, placed, found) in enumerate(filling.placed)
            if placed == demand and found == (old,)
        )
        item = filling.placed[at][0]
        filling.placed[at] = (item, demand, (new,))


def _moved(stands: Sequence[Room], old: Room, new: Room) -> list[Room]:
    at = next(index for index, room in enumerate(stands) if room is old)
    return [*stands[:at], new, *stands[at + 1 :]]


def _different(stands: Sequence[Room]) -> list[Room]:
    return list({room.name: room for room in stands}.values())
