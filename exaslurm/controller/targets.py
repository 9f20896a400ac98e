"""How many replicas of each shard a cell runs, of those that are planned there. Pure.

Those that are wanted no more leave as any replica does: routers are told first, what is begun is
finished, then the engine ends. Those that stay are not touched. A replica that comes back is placed
anew, as one that never had a place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from exaslurm.bind.binder import replica_ids
from exaslurm.controller.cell import Cell
from exaslurm.controller.replicas import Replica
from exaslurm.errors import AllocationError

_FEWER = "fewer replicas of its shard are wanted"


def check_targets(cell: Cell, targets: Mapping[str, int]) -> None:
    """AllocationError, naming the shards that there are, if one is not this cell's."""
    planned = {f"{item.model}:{item.shard}": item.count for item in cell.cell.replica_sets}
    for shard, count in targets.items():
        if shard not in planned:
            known = ", ".join(planned) or "none"
            raise AllocationError(f"cell {cell.cell.name} has no shard {shard!r}; it has {known}")
        if not 0 <= count <= planned[shard]:
            raise AllocationError(
                f"cell {cell.cell.name} has room for 0 to {planned[shard]} replicas of {shard}, "
                f"not for {count}"
            )


def settle(cell: Cell, now: float) -> list[str]:
    """Have as many replicas of each shard as are wanted; what was done, a sentence for each."""
    if cell.binding is None or cell.stopping:
        return []
    done: list[str] = []
    for replica in _of_no_use(cell):
        replica.leave(_FEWER, now, then="go")
        done.append(f"{replica.id} leaves: {_FEWER}")
    gone = [replica.id for replica in cell.replicas.values() if _has_gone(cell, replica)]
    for name in gone:
        del cell.replicas[name]
    if gone:
        places = tuple(place for place in cell.binding.replicas if place.id not in gone)
        cell.binding = dataclasses.replace(cell.binding, replicas=places)
    return done


def missing(cell: Cell) -> Iterator[tuple[str, str, str]]:
    """Id, model and shard of the replicas that are wanted and have no place, in the order of the
    plan. While one leaves, its id is not free."""
    there: dict[tuple[str, str], int] = {}
    for replica in cell.replicas.values():
        shard = replica.binding.model, replica.binding.shard
        there[shard] = there.get(shard, 0) + (not _goes(replica))
    for name, model, shard_name in replica_ids(cell.cell):
        shard = model, shard_name
        if name not in cell.replicas and there.get(shard, 0) < cell.wanted(*shard):
            there[shard] = there.get(shard, 0) + 1
            yield name, model, shard_name


def _of_no_use(cell: Cell) -> Iterator[Replica]:
    """The replicas that are too many: of each shard those that do not serve first, then those with
    least to do, then the last of the plan."""
    shards: dict[tuple[str, str], list[Replica]] = {}
    for replica in cell.replicas.values():
        if not _goes(replica):
            shards.setdefault((replica.binding.model, replica.binding.shard), []).append(replica)
    for shard, mine in shards.items():
        surplus = len(mine) - cell.wanted(*shard)
        if surplus > 0:
            names = [replica.id for replica in mine]
            mine.sort(key=lambda r: (r.state == "ready", r.requests, -names.index(r.id)))
            yield from mine[:surplus]


def _goes(replica: Replica) -> bool:
    return replica.leaving is not None and replica.leaving.then == "go"


def _has_gone(cell: Cell, replica: Replica) -> bool:
    """Whether nothing is left of a replica that is not wanted any more."""
    if not _goes(replica):
        return False
    assert replica.leaving is not None
    return replica.leaving.over or not cell.engines_started
