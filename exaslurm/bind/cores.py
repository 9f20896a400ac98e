"""Which cores of a NUMA node go to which rank.

To the cost (``cost``) the cores of a NUMA node are all the same. Here ranks are kept from sharing
a cache where that is possible, and the core that agent and Ray are on goes only if all go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exaslurm.core.topology import Core, Gpu, NodeTopology


@dataclass(frozen=True, slots=True)
class Request:
    """So many cores of one NUMA node for one rank; ``gpu`` is the rank's, if that is near."""

    count: int
    gpu: Gpu | None


def deal(
    topology: NodeTopology, free: Sequence[Core], keep: int | None, requests: Sequence[Request]
) -> list[tuple[Core, ...]]:
    """The cores of each request, all out of ``free`` (cores of one NUMA node)."""
    groups: dict[int | None, list[Core]] = {}
    for core in sorted(free, key=lambda core: core.cpus):
        groups.setdefault(core.l3, []).append(core)
    order = {l3: place for place, l3 in enumerate(groups)}
    spared = sum(request.count for request in requests) < len(free)
    for core in free:
        if spared and core.cpus[0] == keep:
            groups[core.l3].remove(core)
    found = []
    for request in requests:
        beside = _caches_beside(topology, request.gpu)

        def rank(
            l3: int | None, count: int = request.count, beside: Sequence[int | None] = beside
        ) -> tuple[bool, bool, int, int]:
            spare = len(groups[l3])
            return (l3 not in beside, spare < count, -spare, order[l3])

        taken: list[Core] = []
        for l3 in sorted(groups, key=rank):
            part = groups[l3][: request.count - len(taken)]
            groups[l3] = groups[l3][len(part) :]
            taken += part
        found.append(tuple(sorted(taken, key=lambda core: core.cpus)))
    return found


def _caches_beside(topology: NodeTopology, gpu: Gpu | None) -> list[int | None]:
    """The L3 caches beside a GPU, if they are known to be fewer than those of its NUMA node.

    By the CPUs that the kernel calls local; else, if there is a whole number of caches for each
    GPU of the NUMA node, in order: so are the nodes of Frontier and LUMI wired, and on some only
    their pages tell (https://docs.olcf.ornl.gov/systems/frontier_user_guide.html).
    """
    if gpu is None or gpu.numa is None:
        return []
    cores = [core for core in topology.cores if core.numa == gpu.numa and core.l3 is not None]
    caches = list(dict.fromkeys(core.l3 for core in cores))
    local = {core.l3 for core in cores if set(core.cpus) <= set(gpu.cpus)}
    if 0 < len(local) < len(caches):
        return [l3 for l3 in caches if l3 in local]
    gpus = [other for other in topology.gpus if other.numa == gpu.numa]
    if gpu not in gpus or len(caches) < 2 or len(caches) % len(gpus):
        return []
    share = len(caches) // len(gpus)
    place = gpus.index(gpu)
    return list(caches[place * share : (place + 1) * share])
