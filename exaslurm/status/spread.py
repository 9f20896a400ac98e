"""What the shards of a deployment outlive as they stand now, over all cells."""

from __future__ import annotations

from collections.abc import Sequence

from exaslurm.core.plan import Plan
from exaslurm.core.spread import Standing, prove
from exaslurm.status.model import CellStatus

_GONE = ("failed", "stopped")


def spread_of(plan: Plan, cells: Sequence[CellStatus]) -> tuple[str, ...]:
    """In sentences; none where nothing is known of the replicas, or all is one machine."""
    if plan.layout == "local" or not any(cell.replicas for cell in cells):
        return ()
    workers = {
        (cell.name, part.het_group)
        for cell in plan.cells
        for part in cell.components
        if part.role != "head"
    }
    above = {
        node.node: node.switches
        for cell in cells
        for node in cell.nodes
        if (cell.name, node.het_group) in workers and node.address is not None
    }
    standings = [
        Standing(
            shard=f"{replica.model}:{replica.shard}",
            cell=cell.name,
            nodes=frozenset(replica.nodes or (replica.node,)),
            switches=frozenset(
                name for node in replica.nodes or (replica.node,) for name in above.get(node, ())
            ),
        )
        for cell in cells
        for replica in cell.replicas
        if replica.node and replica.state not in _GONE
    ]
    unknown = [() for standing in standings if not standing.nodes <= above.keys()]
    proof = prove(
        standings,
        plan.survival,
        nodes=[*above.values(), *unknown],
        cells=[cell.name for cell in cells],
    )
    return proof.sentences(name_lost=True)
