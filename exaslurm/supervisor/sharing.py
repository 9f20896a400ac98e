"""Which cells are wanted for a number of replicas, and how many each of them runs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set

from exaslurm.core.plan import Plan
from exaslurm.core.scale import Scale

Counts = Mapping[str, int]
"""How many replicas of each shard (``model:shard``)."""


def share(plan: Plan, scale: Scale | None, living: Set[str]) -> dict[str, Counts | None]:
    """By name of each cell that is wanted, how many replicas of each shard it shall run (None: all
    that are planned there). More replicas than the plan has room for are not given out.

    As few cells as have room for all, those first that have a job already (``living``); among
    these cells the replicas of a shard are divided as evenly as there is room.
    """
    wanted = dict(scale.replicas) if scale is not None else {}
    room = {
        cell.name: Counter({f"{s.model}:{s.shard}": s.count for s in cell.replica_sets})
        for cell in plan.cells
    }
    total: Counter[str] = sum(room.values(), Counter())
    wish = {shard: min(wanted.get(shard, most), most) for shard, most in total.items()}
    if wish == dict(total):
        return dict.fromkeys(room)
    chosen: list[str] = []
    for name in sorted(room, key=lambda name: (name not in living, name)):
        held = sum((room[other] for other in chosen), Counter())
        if any(room[name][shard] and held[shard] < count for shard, count in wish.items()):
            chosen.append(name)
    shares: dict[str, Counter[str]] = {name: Counter() for name in chosen}
    for shard, count in wish.items():
        for _ in range(count):
            free = [name for name in chosen if shares[name][shard] < room[name][shard]]
            least = min(free, key=lambda name: (shares[name][shard], chosen.index(name)))
            shares[least][shard] += 1
    return {
        name: {shard: shares[name][shard] for shard in room[name]}
        for name in sorted(chosen)
        if shares[name].total()
    }
