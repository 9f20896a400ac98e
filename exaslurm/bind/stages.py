"""Tensor-parallel groups and the direct links between GPUs (NVLink, xGMI, Xe Link).

vLLM gives the GPUs that it sees to its ranks in order, and the ranks of a tensor-parallel group
follow each other. So the order of a replica's GPUs decides which of them exchange data in every
layer: those that direct links join, where there are enough of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from exaslurm.bind.gang import joined
from exaslurm.bind.grant import granted_gpus
from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.facts import NodeFacts
from exaslurm.core.plan import Plan


def in_tensor_groups(
    plan: Plan, replicas: Sequence[ReplicaBinding], nodes: Mapping[str, NodeFacts]
) -> tuple[ReplicaBinding, ...]:
    """The same replicas with the GPUs of each part in the order of its tensor-parallel groups."""
    return tuple(
        joined(
            [
                _in_groups(part, nodes[part.node], plan.model(replica.model).tensor)
                for part in replica.parts()
            ]
        )
        for replica in replicas
    )


def _in_groups(part: ReplicaBinding, facts: NodeFacts, tensor: int) -> ReplicaBinding:
    if tensor < 2 or len(part.gpus) <= tensor:
        return part
    islands = _islands(facts)
    by_island: dict[int, list[str]] = {}
    for gpu in part.gpus:
        by_island.setdefault(islands.get(gpu, -1), []).append(gpu)
    whole: list[str] = []
    rest: list[str] = []
    for gpus in by_island.values():
        enough = len(gpus) // tensor * tensor
        whole += gpus[:enough]
        rest += gpus[enough:]
    return dataclasses.replace(part, gpus=(*whole, *rest))


def link_notes(
    plan: Plan, replicas: Sequence[ReplicaBinding], nodes: Mapping[str, NodeFacts]
) -> list[str]:
    """A sentence for each node on which ranks of one tensor-parallel group have no direct links
    between them, though GPUs of that node have some."""
    found: dict[str, list[str]] = {}
    for replica in replicas:
        tensor = plan.model(replica.model).tensor
        for part in replica.parts():
            islands = _islands(nodes[part.node])
            size = min(tensor, len(part.gpus))
            if size < 2 or not nodes[part.node].topology.links:
                continue
            groups = [part.gpus[at : at + size] for at in range(0, len(part.gpus), size)]
            torn = [group for group in groups if len({islands.get(gpu) for gpu in group}) > 1]
            if torn:
                what = f"{replica.id}: no direct links join GPUs {', '.join(torn[0])}"
                found.setdefault(part.node, []).append(what)
    return [
        f"{node}: {torn[0]}, which exchange data in every layer"
        + (f" (and {len(torn) - 1} more on {node})" if len(torn) > 1 else "")
        for node, torn in sorted(found.items())
    ]


def _islands(facts: NodeFacts) -> dict[str, int]:
    """For each granted GPU, by its visible id, the number of the set that direct links join (over
    others, where need be: also ones that were not granted)."""
    topology = facts.topology
    root = list(range(len(topology.gpus)))

    def top(place: int) -> int:
        while root[place] != place:
            place = root[place]
        return place

    for link in topology.links:
        root[top(link.a)] = top(link.b)
    places = {gpu.pci: top(place) for place, gpu in enumerate(topology.gpus) if gpu.pci is not None}
    return {
        gpu.visible_id: places[gpu.gpu.pci]
        for gpu in granted_gpus(facts)
        if gpu.gpu.pci is not None and gpu.gpu.pci in places
    }
