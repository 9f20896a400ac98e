"""How many replicas of each shard a cell holds, and what its nodes have to carry for that.

Replicas are placed one by one on nodes of which only the kind is known, by the rule that the
binder will use on the real ones: what fits here fits there.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exaslurm.core.filling import Filling, fill
from exaslurm.core.gangs import choose_rooms
from exaslurm.core.placement import UNKNOWN, Demand, Room, Rooms
from exaslurm.core.plan import ModelPlan, ReplicaSet
from exaslurm.core.spread import Standing, Survival
from exaslurm.plan.cells import Group, Part
from exaslurm.plan.context import Findings
from exaslurm.plan.scaling import most_replicas
from exaslurm.spec.model import Spec

Shard = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Load:
    """The most that the replicas of one node of a part need."""

    gpus: int = 0
    cores: int = 0
    mem_mib: int = 0

    def or_more(self, other: Load) -> Load:
        return Load(
            max(self.gpus, other.gpus),
            max(self.cores, other.cores),
            max(self.mem_mib, other.mem_mib),
        )

    def plus(self, demand: Demand) -> Load:
        return Load(
            self.gpus + demand.gpus, self.cores + demand.cores, self.mem_mib + demand.mem_mib
        )


@dataclass(frozen=True, slots=True)
class FilledCell:
    """A cell with its replicas: how many of each shard, and the loads of its parts."""

    counts: Mapping[Shard, int]
    apart: Mapping[Shard, int | None]
    loads: tuple[Load, ...]
    standings: tuple[Standing, ...]

    def replica_sets(self, models: Sequence[ModelPlan]) -> tuple[ReplicaSet, ...]:
        """The counts in the order of the spec."""
        return tuple(
            ReplicaSet(
                model=model.name,
                shard=shard.name,
                count=self.counts[model.name, shard.name],
                apart=self.apart[model.name, shard.name],
            )
            for model in models
            for shard in model.shards
            if self.counts.get((model.name, shard.name))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What replicas stand on. ``reserve_gib`` of each node (``head_gib`` of a cell's first node,
    if that is more) is not for replicas."""

    cells: Sequence[Sequence[Part]]
    reserve_gib: float
    head_gib: float
    survival: Survival


def spread(
    spec: Spec, models: Sequence[ModelPlan], ground: Ground, findings: Findings
) -> list[FilledCell]:
    """Give every replica a cell, large replicas first: as many of each shard as have to be apart
    to different cells, the others evenly."""
    wanted = [
        (Demand.of(model, shard.name), most_replicas(spec, shard), _asked_by(spec, i, j))
        for i, (model, asked) in enumerate(zip(models, spec.models, strict=True))
        for j, shard in enumerate(asked.shards)
    ]
    demands = {(demand.model, demand.shard): demand for demand, _, _ in wanted}
    cells = [_Cell(index, ground, demands) for index in range(len(ground.cells))]
    for size in sorted({demand.size() for demand in demands.values()}, reverse=True):
        _assign(cells, {demand: n for demand, n, _ in wanted if demand.size() == size})
    _as_bound(cells)
    for demand, count, key in wanted:
        done = sum(cell.counts[demand.model, demand.shard] for cell in cells)
        if done < count:
            findings.add(spec.problem(key, _no_room(demand, count, done, ground)))
    return [cell.filled() for cell in cells]


def _asked_by(spec: Spec, model: int, shard: int) -> str:
    """The key that says how many replicas there may be."""
    key, asked = f"models[{model}].shards[{shard}]", spec.models[model].shards[shard]
    if spec.autoscale is None or most_replicas(spec, asked) == asked.replicas:
        return f"{key}.replicas"
    return f"{key}.max" if asked.max is not None else "autoscale.max"


class _Cell:
    """A cell while replicas are given to it."""

    def __init__(self, index: int, ground: Ground, demands: Mapping[Shard, Demand]) -> None:
        self.index = index
        self.rooms = _imagined(ground, index)
        self.counts: Counter[Shard] = Counter()
        self.anchors: Counter[Shard] = Counter()
        self.filling: Filling[None] | None = None
        self._ground = ground
        self._demands = demands

    def load(self) -> float:
        return self.rooms.replicas / len(self.rooms.rooms)

    def apart(self) -> dict[Shard, int]:
        """How many replicas of each shard have to be on different nodes of the cell."""
        return {shard: max(1, self.anchors[shard]) for shard in self.counts}

    def spare(self, demand: Demand) -> tuple[int, int]:
        """What the roomiest node, and all nodes together, would have room for."""
        found = [room.spare(demand) for room in self.rooms.rooms if room.fits(demand)]
        return max(found, default=0), sum(found)

    def put(self, demand: Demand, *, only_new: bool = False) -> bool:
        """Place one replica; false if no node has room, or too few have (or, with ``only_new``,
        only such that carry the shard already)."""
        chosen = choose_rooms(self.rooms, demand)
        if only_new and any(room.of_shard[demand.model, demand.shard] for room in chosen):
            return False
        for room in chosen:
            self.rooms.take(room, demand)
        self.counts[demand.model, demand.shard] += bool(chosen)
        return bool(chosen)

    def as_bound(self, counts: Counter[Shard]) -> Filling[None]:
        """What the binder would do with so many of each shard: it takes them in the order of the
        spec."""
        wanted = [
            (None, demand) for shard, demand in self._demands.items() for _ in range(counts[shard])
        ]
        return fill(_imagined(self._ground, self.index, self.apart()), wanted)

    def filled(self) -> FilledCell:
        """The cell as the binder will fill it."""
        filling = self.filling or self.as_bound(self.counts)
        used: dict[str, Load] = {}
        for _, demand, rooms in filling.placed:
            for room in rooms:
                used[room.name] = used.get(room.name, Load()).plus(demand)
        parts = self._ground.cells[self.index]
        part_of = [number for number, part in enumerate(parts) for _ in range(part.nodes)]
        loads = [Load() for _ in parts]
        for name, load in used.items():
            loads[part_of[int(name)]] = loads[part_of[int(name)]].or_more(load)
        standings = tuple(
            Standing(
                shard=f"{demand.model}:{demand.shard}",
                cell=str(self.index),
                nodes=frozenset(f"{self.index}/{room.name}" for room in rooms),
            )
            for _, demand, rooms in filling.placed
        )
        anchors = self._ground.survival.anchors
        apart = {
            shard: None if most == min(self.counts[shard], anchors) else most
            for shard, most in self.apart().items()
        }
        return FilledCell(dict(self.counts), apart, tuple(loads), standings)


def _assign(cells: Sequence[_Cell], wanted: Mapping[Demand, int]) -> None:
    """Replicas of one size to cells, as many as have room."""
    if len(cells) == 1:
        for demand, count in wanted.items():
            cells[0].counts[demand.model, demand.shard] = count
            cells[0].anchors[demand.model, demand.shard] = cells[0].rooms.survival.anchors
        return
    anchors = cells[0].rooms.survival.anchors
    done = {demand: _put_apart(cells, demand, min(n, anchors)) for demand, n in wanted.items()}
    for demand, count in wanted.items():
        _put_evenly(cells, demand, count - done[demand])


def _put_apart(cells: Sequence[_Cell], demand: Demand, count: int) -> int:
    """Replicas to different nodes, and to as many cells as have to be; the roomiest first. Answers
    how many had room."""
    shard = (demand.model, demand.shard)
    survival = cells[0].rooms.survival

    def order(cell: _Cell) -> tuple[bool, int, int, int, int]:
        roomiest, total = cell.spare(demand)
        again = few_cells and cell.counts[shard] > 0
        return (again, -roomiest, -total, cell.counts[shard], cell.index)

    for done in range(count):
        few_cells = sum(cell.counts[shard] > 0 for cell in cells) <= survival.cells
        for cell in sorted(cells, key=order):
            if cell.put(demand, only_new=True):
                cell.anchors[shard] += 1
                break
        else:
            if not any(cell.put(demand) for cell in sorted(cells, key=order)):
                return done
    return count


def _put_evenly(cells: Sequence[_Cell], demand: Demand, count: int) -> int:
    """Replicas to the cells with fewest of the shard for their size, the least loaded ones first,
    as long as they have room. Answers how many had."""
    shard = (demand.model, demand.shard)

    def entry(cell: _Cell) -> tuple[float, float, int]:
        return (cell.counts[shard] / len(cell.rooms.rooms), cell.load(), cell.index)

    heap = [entry(cell) for cell in cells]
    heapq.heapify(heap)
    done = 0
    while done < count and heap:
        cell = cells[heapq.heappop(heap)[2]]
        if cell.put(demand):
            done += 1
            heapq.heappush(heap, entry(cell))
    return done


def _as_bound(cells: Sequence[_Cell]) -> None:
    """See to it that the binder, which knows one cell and takes its replicas in an order of its
    own, finds room for each: one that would have none goes to another cell, or is left out."""
    for cell in cells:
        cell.filling = cell.as_bound(cell.counts)
        while cell.filling.homeless:
            for _, demand in cell.filling.homeless:
                shard = (demand.model, demand.shard)
                cell.counts[shard] -= 1
                for other in sorted(cells, key=_Cell.load) if len(cells) > 1 else ():
                    more = Counter({**other.counts, shard: other.counts[shard] + 1})
                    filling = other.as_bound(more)
                    if other is not cell and not filling.homeless:
                        other.counts, other.filling = more, filling
                        break
            cell.filling = cell.as_bound(cell.counts)


def _imagined(ground: Ground, index: int, apart: Mapping[Shard, int] | None = None) -> Rooms:
    """The nodes of a cell, of which only the kind is known."""
    rooms: list[Room] = []
    for part in ground.cells[index]:
        kind = part.group.kind
        for _ in range(part.nodes):
            reserved = ground.reserve_gib if rooms else max(ground.reserve_gib, ground.head_gib)
            rooms.append(
                Room(
                    name=str(len(rooms)),
                    order=len(rooms),
                    switch=None,
                    gpus=UNKNOWN if kind.known_gpus is None else kind.known_gpus,
                    cores=UNKNOWN if kind.known_cores is None else kind.known_cores,
                    mem_mib=UNKNOWN
                    if kind.mem_gib is None
                    else round((kind.mem_gib - reserved) * 1024),
                    barred=part.group.barred,
                )
            )
    return Rooms(rooms, ground.survival, apart)


def _no_room(demand: Demand, count: int, done: int, ground: Ground) -> str:
    groups: dict[str, Group] = {
        part.group.key: part.group for parts in ground.cells for part in parts
    }
    nodes = ", ".join(_describe(group, ground.reserve_gib) for group in groups.values())
    takes = f"{_count(demand.cores, 'core')}, {demand.mem_mib / 1024:g} GiB"
    if demand.gpus:
        takes = f"{_count(demand.gpus, 'GPU')}, {takes}"
    if demand.nodes > 1:
        takes += f" on each of {demand.nodes} nodes of one cell"
    return (
        f"{count} asked, but only {done} have room: a replica takes {takes} and at most "
        f"{demand.max_per_node} go on a node; there are {nodes}"
    )


def _describe(group: Group, reserve_gib: float) -> str:
    has = []
    if group.kind.known_gpus is not None:
        has.append(_count(group.kind.known_gpus, "GPU"))
    if group.kind.known_cores is not None:
        has.append(_count(group.kind.known_cores, "core"))
    if group.kind.mem_gib is not None:
        has.append(f"{group.kind.mem_gib - reserve_gib:g} GiB for replicas")
    nodes = _count(group.nodes, "node")
    return f"{nodes} of kind {group.kind_name} ({', '.join(has) or 'size not known'})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
