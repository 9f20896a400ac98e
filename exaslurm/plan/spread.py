"""How many replicas of each shard a cell holds, and what its nodes have to carry for that.

Replicas are placed one by one on nodes of which only the kind is known, by the rule that the
binder will use on the real ones: what fits here fits there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from exaslurm.core.gangs import choose_rooms
from exaslurm.core.placement import UNKNOWN, Demand, Room, Rooms
from exaslurm.core.plan import ModelPlan, ReplicaSet
from exaslurm.plan.cells import Group, Part
from exaslurm.plan.context import Findings
from exaslurm.spec.model import Spec


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


@dataclass(slots=True)
class FilledCell:
    """A cell while replicas are given to it."""

    rooms: Rooms
    part_of: dict[str, int]
    nodes: int
    loads: list[Load]
    used: dict[str, Load] = field(default_factory=dict)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def put(self, demand: Demand) -> bool:
        """Place one replica; false if no node has room, or too few have."""
        chosen = choose_rooms(self.rooms, demand)
        for room in chosen:
            self._take(room, demand)
        if chosen:
            self.counts[demand.model, demand.shard] += 1
        return bool(chosen)

    def _take(self, room: Room, demand: Demand) -> None:
        self.rooms.take(room, demand)
        before = self.used.get(room.name, Load())
        after = Load(
            before.gpus + demand.gpus,
            before.cores + demand.cores,
            before.mem_mib + demand.mem_mib,
        )
        self.used[room.name] = after
        part = self.part_of[room.name]
        self.loads[part] = self.loads[part].or_more(after)

    def replica_sets(self, models: Sequence[ModelPlan]) -> tuple[ReplicaSet, ...]:
        """The counts in the order of the spec."""
        return tuple(
            ReplicaSet(
                model=model.name, shard=shard.name, count=self.counts[model.name, shard.name]
            )
            for model in models
            for shard in model.shards
            if self.counts[model.name, shard.name]
        )


def spread(
    spec: Spec,
    models: Sequence[ModelPlan],
    cells: Sequence[Sequence[Part]],
    reserve_gib: float,
    head_gib: float,
    findings: Findings,
) -> list[FilledCell]:
    """Give every replica a cell: the least loaded one that has room, large replicas first.

    ``reserve_gib`` of each node (``head_gib`` of a cell's first node, if that is more) is not
    for replicas.
    """
    filled = [_empty(parts, reserve_gib, head_gib) for parts in cells]
    wanted = [
        (Demand.of(model, shard.name), shard.replicas, f"models[{i}].shards[{j}].replicas")
        for i, (model, asked) in enumerate(zip(models, spec.models, strict=True))
        for j, shard in enumerate(asked.shards)
    ]
    wanted.sort(key=lambda item: item[0].size(), reverse=True)
    for demand, count, key in wanted:
        for done in range(count):
            if not _put(filled, demand):
                findings.add(spec.problem(key, _no_room(demand, count, done, cells, reserve_gib)))
                break
    return filled


def _put(cells: Sequence[FilledCell], demand: Demand) -> bool:
    def load(index: int) -> tuple[float, int]:
        return (cells[index].rooms.replicas / cells[index].nodes, index)

    first = min(range(len(cells)), key=load)
    if cells[first].put(demand):
        return True
    return any(cells[index].put(demand) for index in sorted(range(len(cells)), key=load))


def _empty(parts: Sequence[Part], reserve_gib: float, head_gib: float) -> FilledCell:
    rooms: list[Room] = []
    part_of: dict[str, int] = {}
    for number, part in enumerate(parts):
        for _ in range(part.nodes):
            order = len(rooms)
            kind = part.group.kind
            reserved = reserve_gib if order else max(reserve_gib, head_gib)
            room = Room(
                name=str(order),
                order=order,
                switch=None,
                gpus=UNKNOWN if kind.known_gpus is None else kind.known_gpus,
                cores=UNKNOWN if kind.known_cores is None else kind.known_cores,
                mem_mib=UNKNOWN
                if kind.mem_gib is None
                else round((kind.mem_gib - reserved) * 1024),
            )
            rooms.append(room)
            part_of[room.name] = number
    return FilledCell(Rooms(rooms), part_of, len(rooms), [Load() for _ in parts])


def _no_room(
    demand: Demand,
    count: int,
    done: int,
    cells: Sequence[Sequence[Part]],
    reserve_gib: float,
) -> str:
    groups: dict[str, Group] = {part.group.key: part.group for parts in cells for part in parts}
    nodes = ", ".join(_describe(group, reserve_gib) for group in groups.values())
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
