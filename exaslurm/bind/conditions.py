"""Which nodes meet the conditions of which models, and why the others do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.facts import NodeFacts
from exaslurm.core.node_values import conditions, node_values
from exaslurm.core.placement import Demand
from exaslurm.core.plan import ModelPlan, Plan

Reasons = Mapping[str, str]


def why_barred(plan: Plan, facts: NodeFacts) -> Reasons:
    """The models that the node may not carry, each with the condition that it does not meet and
    what was found there."""
    found: dict[str, str] = {}
    for model in plan.models:
        if not model.constraints:
            continue
        values = node_values(facts, Demand.of(model, model.shards[0].name))
        reasons = [
            condition.why_not(values)
            for condition in conditions(model.constraints)
            if condition.verdict(values) is not True
        ]
        if reasons:
            found[model.name] = "; ".join(reasons)
    return found


def barred_notes(barred: Mapping[str, Reasons]) -> list[str]:
    """A sentence for each node and reason. ``barred``: the reasons by node."""
    notes = []
    for node, reasons in barred.items():
        for reason in dict.fromkeys(reasons.values()):
            models = [model for model, other in reasons.items() if other == reason]
            notes.append(f"{node} carries no replica of {', '.join(models)}: {reason}")
    return notes


def locality_notes(
    plan: Plan, replicas: Sequence[ReplicaBinding], nodes: Mapping[str, NodeFacts]
) -> list[str]:
    """Replicas that should stay in one NUMA node and had to be spread over several: each could,
    but not all that are on the node together."""
    wanted = {model.name for model in plan.models if _wants_locality(model)}
    notes = []
    for replica in replicas:
        if replica.model not in wanted:
            continue
        for part in replica.parts():
            several = len(nodes[part.node].topology.memory_nodes) > 1
            if several and part.mem_node is None:
                notes.append(f"{replica.id} on {part.node}: numa_local is not kept")
    return notes


def _wants_locality(model: ModelPlan) -> bool:
    return any("numa_local" in condition.names() for condition in conditions(model.constraints))
