"""Which node takes the next replica: the one rule that planner, binder and replacement share.

The node with the fewest replicas that has room; among equals the one with the fewest of the same
shard, then the one whose switch carries fewest, then the first in order. The planner applies it to
nodes of which only the kind is known, the binder to the nodes that Slurm granted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from exaslurm.core.plan import ModelPlan
from exaslurm.core.ports import MAX_ENGINES

UNKNOWN = 1 << 40
"""Room of a node where nobody knows how much it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one replica takes on its node; one over several nodes takes it on each."""

    model: str
    shard: str
    gpus: int
    cores: int
    mem_mib: int
    max_per_node: int
    nodes: int = 1

    @classmethod
    def of(cls, model: ModelPlan, shard: str) -> Demand:
        """The demand of one replica of a shard."""
        return cls(
            model=model.name,
            shard=shard,
            gpus=model.slot.gpus,
            cores=model.slot.cores,
            mem_mib=round(model.slot.mem_gib * 1024),
            max_per_node=model.max_replicas_per_node,
            nodes=model.nodes,
        )

    def size(self) -> tuple[int, int, int, int]:
        """For placing the large ones first, while there is room in one piece."""
        return (self.nodes, self.gpus, self.cores, self.mem_mib)


@dataclass(slots=True, kw_only=True)
class Room:
    """What is free on a node. ``order`` is its place among the nodes of the cell."""

    name: str
    order: int
    switch: str | None
    gpus: int
    cores: int
    mem_mib: int
    engines: int = MAX_ENGINES
    replicas: int = 0
    of_model: Counter[str] = field(default_factory=Counter)
    of_shard: Counter[tuple[str, str]] = field(default_factory=Counter)

    def fits(self, demand: Demand, *, share: bool = False) -> bool:
        """Whether the replica has room. ``share``: cores and memory may be shared; GPUs and
        ports never."""
        return (
            self.gpus >= demand.gpus
            and self.engines > 0
            and self.of_model[demand.model] < demand.max_per_node
            and (share or (self.cores >= demand.cores and self.mem_mib >= demand.mem_mib))
        )

    def take(self, demand: Demand) -> None:
        """Account for one replica."""
        self.gpus -= demand.gpus
        self.cores -= demand.cores
        self.mem_mib -= demand.mem_mib
        self.engines -= 1
        self.replicas += 1
        self.of_model[demand.model] += 1
        self.of_shard[demand.model, demand.shard] += 1


class Rooms:
    """The nodes of a cell while replicas are given to them."""

    def __init__(self, rooms: Sequence[Room]) -> None:
        self.rooms = sorted(rooms, key=lambda room: room.order)
        self.on_switch: Counter[str | None] = Counter()
        for room in self.rooms:
            self.on_switch[room.switch] += room.replicas
        self.replicas = sum(room.replicas for room in self.rooms)

    def choose(
        self, demand: Demand, *, share: bool = False, avoid: Collection[str] = ()
    ) -> Room | None:
        """The node for one more replica, None if none has room."""
        best: Room | None = None
        best_key: tuple[int, int, int, int] | None = None
        shard = (demand.model, demand.shard)
        for room in self.rooms:
            if best_key is not None and room.replicas > best_key[0]:
                continue
            if room.name in avoid or not room.fits(demand, share=share):
                continue
            key = (room.replicas, room.of_shard[shard], self.on_switch[room.switch], room.order)
            if best_key is None or key < best_key:
                best, best_key = room, key
        return best

    def take(self, room: Room, demand: Demand) -> None:
        """Account for one replica on ``room``."""
        room.take(demand)
        self.on_switch[room.switch] += 1
        self.replicas += 1
