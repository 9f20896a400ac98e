"""What other cells have done already, for shards that this cell shares with them.

No switch should end all replicas of a shard, over all cells. A cell that binds later than another
one reads where that put its replicas; cells that bind at the same moment do not know of each other,
and then each begins with another one of its switches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from exaslurm.core.binding import CellBinding
from exaslurm.core.marker import BootstrapMarker
from exaslurm.core.placement import Shard
from exaslurm.core.plan import CellPlan, Plan

# Two are enough to keep a shard apart; the files of hundreds are not worth reading.
MAX_CELLS = 8


def cells_to_ask(plan: Plan, cell: CellPlan) -> list[str]:
    """Other cells with shards of this one, the nearest by number."""
    mine = {(item.model, item.shard) for item in cell.replica_sets}
    others = [
        other
        for other in plan.cells
        if other.name != cell.name
        and any((item.model, item.shard) in mine for item in other.replica_sets)
    ]
    others.sort(key=lambda other: (abs(other.index - cell.index), other.index))
    return [other.name for other in others[:MAX_CELLS]]


def fatal_elsewhere(
    cells: Iterable[tuple[CellBinding, BootstrapMarker]],
) -> dict[Shard, frozenset[str]]:
    """Of each shard, the switches that each would end all its replicas in these cells."""
    found: dict[Shard, frozenset[str]] = {}
    for binding, marker in cells:
        for replica in binding.replicas:
            above = frozenset(
                name for node in replica.nodes for name in marker.switches.get(node, ())
            )
            shard = (replica.model, replica.shard)
            found[shard] = found.get(shard, above) & above
    return found


def turns(plan: Plan, cell: CellPlan) -> dict[Shard, int]:
    """Of each shard, how many cells before this one have it."""
    before = Counter(
        (item.model, item.shard)
        for other in plan.cells
        if other.index < cell.index
        for item in other.replica_sets
    )
    return {shard: before[shard] for shard in ((s.model, s.shard) for s in cell.replica_sets)}
