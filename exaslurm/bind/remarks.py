"""What of a replica's place is not as near as it should be, in words."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from exaslurm.bind.cost import distances, home_of
from exaslurm.bind.grant import LITTLE, granted_cores
from exaslurm.bind.parts import Fit
from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.facts import NodeFacts
from exaslurm.core.topology import NodeTopology


def remark_of(topology: NodeTopology, fit: Fit, cpus: int = 0) -> str | None:
    """A sentence, None where everything is near and there is hardly less than the CPUs that were
    asked for."""
    far = distances(topology)
    home = home_of(far, fit)
    away = 0
    for part in fit.parts:
        near = part.gpu.gpu.numa if part.gpu is not None else None
        near = home if near is None else near
        away += sum(far.numa(near, core.numa) > 0 for core in part.cores)
    found = []
    if away:
        what = "its GPU" if any(part.gpu for part in fit.parts) else "its other cores"
        found.append(f"{away} of {len(fit.cores)} cores are not in the NUMA node of {what}")
    elsewhere = set(fit.mem_nodes) - {core.numa for core in fit.cores}
    if elsewhere:
        nodes = ", ".join(map(str, sorted(elsewhere)))
        found.append(f"some of its memory is in NUMA node {nodes}, its cores are not")
    if (cpus - len(fit.cpus)) * LITTLE > cpus:
        found.append(f"{len(fit.cpus)} of {cpus} CPUs, for cores are given whole")
    return "; ".join(found) or None


def place_notes(
    replicas: Sequence[ReplicaBinding], nodes: Mapping[str, NodeFacts], told: Collection[str]
) -> list[str]:
    """A sentence for each node with replicas that are not as near as they should be, or share
    cores though there are enough threads (of nodes in ``told``, that is said elsewhere)."""
    by_node: dict[str, list[ReplicaBinding]] = {}
    for replica in replicas:
        for part in replica.parts():
            by_node.setdefault(part.node, []).append(part)
    notes = []
    for node in sorted(by_node):
        facts, parts = nodes[node], by_node[node]
        far = [part for part in parts if part.remark]
        if far:
            more = f" (and {len(far) - 1} more on {node})" if len(far) > 1 else ""
            notes.append(f"{node}: {far[0].id}: {far[0].remark}{more}")
        shared = not all(part.pinned for part in parts)
        if shared and node not in told:
            cores = len(granted_cores(facts.topology, facts.cpus))
            notes.append(
                f"{node}: replicas share all its cores: no two of them may be on one core, and "
                f"{cores} cores with {len(facts.cpus)} threads are too few for {len(parts)} of them"
            )
    return notes
