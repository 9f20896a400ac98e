"""Which node takes the next replica: the one rule that planner, binder and replacement share.

While a shard has not enough replicas apart for what it shall outlive (see ``spread``), its next
one goes below another switch and to another node, the one with most to spare: taking the roomiest
nodes first is what leaves the later shards as many different nodes as there can be (the theorem of
Gale and Ryser). After that, and among equals, it is the node with the fewest replicas, then with
the fewest of the same shard, then the one whose switch carries fewest, then the first in order.

The planner applies it to nodes of which only the kind is known, the binder to the nodes that Slurm
granted. Both prefer by what nodes of the kind have (``spare_*``), and not by what Slurm was asked
for or granted: so they choose alike, and what fits into the plan fits into the job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from exaslurm.core.plan import ModelPlan
from exaslurm.core.ports import MAX_ENGINES
from exaslurm.core.spread import Survival

T = TypeVar("T")
Shard = tuple[str, str]

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


@dataclass(slots=True, kw_only=True, eq=False)
class Room:
    """What is free on a node. ``order`` is its place among the nodes of the cell, ``switches``
    are all those above it. ``spare_gpus`` and ``spare_cores`` are for the preference among nodes
    (-1: what is free). Replicas of the models in ``barred`` may not go there."""

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
    switches: frozenset[str] = frozenset()
    spare_gpus: int = -1
    spare_cores: int = -1
    barred: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.spare_gpus < 0:
            self.spare_gpus = self.gpus
        if self.spare_cores < 0:
            self.spare_cores = self.cores

    def fits(self, demand: Demand, *, share: bool = False) -> bool:
        """Whether the replica has room. ``share``: cores and memory may be shared; GPUs and
        ports never."""
        return (
            self.gpus >= demand.gpus
            and self.engines > 0
            and self.of_model[demand.model] < demand.max_per_node
            and (share or (self.cores >= demand.cores and self.mem_mib >= demand.mem_mib))
            and demand.model not in self.barred
        )

    def spare(self, demand: Demand) -> int:
        """How many such replicas a node of the kind would have room for beside those here."""
        most = demand.max_per_node - self.of_model[demand.model]
        most = min(most, self.spare_cores // demand.cores)
        return min(most, self.spare_gpus // demand.gpus) if demand.gpus else most

    def take(self, demand: Demand) -> None:
        """Account for one replica."""
        self.gpus -= demand.gpus
        self.cores -= demand.cores
        self.mem_mib -= demand.mem_mib
        self.spare_gpus -= demand.gpus
        self.spare_cores -= demand.cores
        self.engines -= 1
        self.replicas += 1
        self.of_model[demand.model] += 1
        self.of_shard[demand.model, demand.shard] += 1


class Rooms:
    """The nodes of a cell while replicas are given to them."""

    def __init__(
        self,
        rooms: Sequence[Room],
        survival: Survival | None = None,
        apart: Mapping[Shard, int | None] | None = None,
        elsewhere: Mapping[Shard, frozenset[str]] | None = None,
        turns: Mapping[Shard, int] | None = None,
    ) -> None:
        """``apart``: how many replicas of a shard have to be on different nodes (None, or not in
        it: as many as ``survival`` asks for). ``elsewhere``: the switches that each would end all
        its replicas in other cells, as far as known; else the cells take ``turns`` with which
        switch they begin."""
        self._apart = apart or {}
        self._elsewhere = elsewhere or {}
        self._turns = turns or {}
        self.rooms = sorted(rooms, key=lambda room: room.order)
        self.survival = survival or Survival()
        self.on_switch: Counter[str | None] = Counter()
        self.replicas = 0
        # A switch above all of them ends the cell, wherever its replicas are.
        above_all = frozenset.intersection(*(room.switches for room in rooms)) if rooms else None
        self._below = {room.name: room.switches - (above_all or set()) for room in self.rooms}
        self._stands: dict[Shard, list[Room]] = {}
        # Of each shard, the switches that each would end all its replicas.
        self._fatal: dict[Shard, frozenset[str]] = dict(self._elsewhere)
        below_how_many = Counter(name for below in self._below.values() for name in below)
        self._top = {
            name: max(below, key=lambda switch: (below_how_many[switch], switch), default="")
            for name, below in self._below.items()
        }
        self._tops = sorted(set(self._top.values()))
        for room in self.rooms:
            self.on_switch[room.switch] += room.replicas
            self.replicas += room.replicas
            for shard, count in room.of_shard.items():
                if count:
                    self._stand(shard, room)

    def choose(
        self, demand: Demand, *, share: bool = False, avoid: Collection[str] = ()
    ) -> Room | None:
        """The node for one more replica, None if none has room."""
        best: Room | None = None
        best_key: tuple[int, ...] | None = None
        shard = (demand.model, demand.shard)
        mine = self._stands.get(shard, ())
        shared = self._fatal.get(shard, frozenset())
        apart = len(mine) < self.apart(demand) or bool(shared)
        for room in self.rooms:
            if not apart and best_key is not None and room.replicas > best_key[0]:
                continue
            if room.name in avoid or not room.fits(demand, share=share):
                continue
            key: tuple[int, ...] = (
                room.replicas,
                room.of_shard[shard],
                self.on_switch[room.switch],
                room.order,
            )
            if apart:
                near = self._nearness(room, mine, shared)
                turn = 0 if mine or shard in self._elsewhere else self._turn(shard, room)
                key = (near, room.of_shard[shard], turn, -room.spare(demand), *key)
            if best_key is None or key < best_key:
                best, best_key = room, key
        return best

    def apart(self, demand: Demand) -> int:
        """How many replicas of the shard have to be on different nodes."""
        apart = self._apart.get((demand.model, demand.shard))
        return self.survival.anchors if apart is None else apart

    def take(self, room: Room, demand: Demand) -> None:
        """Account for one replica on ``room``."""
        if not room.of_shard[demand.model, demand.shard]:
            self._stand((demand.model, demand.shard), room)
        room.take(demand)
        self.on_switch[room.switch] += 1
        self.replicas += 1

    def weakness(self, demand: Demand, stands: Sequence[Room]) -> tuple[int, int]:
        """What the shard of ``demand`` lacks with its replicas on ``stands``: nodes, and switches
        too many that each would end all of it. ``(0, 0)``: nothing."""
        nodes = len({room.name for room in stands})
        lacks = min(self.apart(demand), len(stands)) - nodes
        alone = len(stands) < 2 and (demand.model, demand.shard) not in self._elsewhere
        return max(0, lacks), 0 if alone else len(self._shared(demand, stands))

    def helps(self, demand: Demand, stands: Sequence[Room], room: Room) -> bool:
        """Whether one of the replicas on ``stands`` may be better on ``room``."""
        if room not in stands and self.weakness(demand, stands)[0]:
            return True
        shared = self._shared(demand, stands)
        return bool(shared) and not shared <= self._below[room.name]

    def exchange(self, one: tuple[Room, Demand], other: tuple[Room, Demand]) -> None:
        """Two replicas of one model, on a node each, change places."""
        for (old, demand), (new, _) in ((one, other), (other, one)):
            shard = (demand.model, demand.shard)
            old.of_shard[shard] -= 1
            new.of_shard[shard] += 1
            stands = [room for room in self._stands[shard] if room.of_shard[shard]]
            self._stands[shard] = stands if new in stands else [*stands, new]
            self._fatal[shard] = self._shared(demand, self._stands[shard])

    def _stand(self, shard: Shard, room: Room) -> None:
        self._stands.setdefault(shard, []).append(room)
        if self.survival.switches:
            below = self._below[room.name]
            self._fatal[shard] = self._fatal.get(shard, below) & below

    def _turn(self, shard: Shard, room: Room) -> int:
        """0 for nodes below the switch that this cell begins with."""
        first = self._tops[self._turns.get(shard, 0) % len(self._tops)]
        return int(self._top[room.name] != first)

    def _shared(self, demand: Demand, mine: Sequence[Room]) -> frozenset[str]:
        """Switches that each would end all replicas of the shard, with its replicas here on
        ``mine``."""
        if not mine or not self.survival.switches:
            return frozenset()
        shared = frozenset.intersection(*(self._below[room.name] for room in mine))
        return shared & self._elsewhere.get((demand.model, demand.shard), shared)

    def _nearness(self, room: Room, mine: Sequence[Room], shared: frozenset[str]) -> int:
        """How little it would help against the loss of switches to place the next one here."""
        below = self._below[room.name]
        if self.survival.switches > 1:
            return sum(not below.isdisjoint(self._below[other.name]) for other in mine)
        return len(below & shared)


def in_order(wanted: Sequence[tuple[T, Demand]], rooms: Rooms) -> list[tuple[T, Demand]]:
    """Replicas in the order in which they get their places: the large ones first, while there is
    room in one piece; among equals first so many of every shard as have to be apart."""
    seen: Counter[tuple[str, str]] = Counter()
    ranked = []
    for item in wanted:
        shard = (item[1].model, item[1].shard)
        ranked.append((seen[shard] >= rooms.apart(item[1]), item))
        seen[shard] += 1
    ranked.sort(key=lambda entry: (tuple(-part for part in entry[1][1].size()), entry[0]))
    return [item for _, item in ranked]
