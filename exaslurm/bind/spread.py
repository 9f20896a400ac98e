"""What the replicas of a cell outlive on the nodes that Slurm granted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.facts import NodeFacts
from exaslurm.core.plan import CellPlan, Plan
from exaslurm.core.spread import Proof, Standing, prove


def spread_notes(
    plan: Plan,
    cell: CellPlan,
    replicas: Sequence[ReplicaBinding],
    nodes: Mapping[str, NodeFacts],
) -> list[str]:
    """Shards that would be lost with less than the plan and the number of their replicas allow.

    Only those that have all their replicas here: what holds for shards in several cells is known
    to `status`, which sees them all.
    """
    everywhere = Counter[tuple[str, str]]()
    for other in plan.cells:
        for item in other.replica_sets:
            everywhere[item.model, item.shard] += item.count
    here = {(item.model, item.shard): item.count for item in cell.replica_sets}
    standings = [
        Standing(
            shard=f"{replica.model}:{replica.shard}",
            cell=cell.name,
            nodes=frozenset(part.node for part in replica.parts()),
            switches=frozenset(
                name for part in replica.parts() for name in nodes[part.node].above()
            ),
        )
        for replica in replicas
        if everywhere[replica.model, replica.shard] == here[replica.model, replica.shard]
    ]
    proof = prove(standings, plan.survival, nodes=[facts.above() for facts in nodes.values()])
    planned = sum(part.nodes for part in cell.components if part.role != "head")
    weak = tuple(
        item
        for item in proof.weak
        if item.replicas > item.limit
        and (
            item.thing != "nodes"
            or len(item.lost) < min(planned, plan.weak.get(item.shard, item.limit + 1))
        )
    )
    return list(Proof(outlived=(), weak=weak, without=()).sentences(name_lost=True))
