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
    return filling
