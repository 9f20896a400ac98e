"""What is nearest to what, of the devices of a whole node."""

from __future__ import annotations

from collections.abc import Sequence

from exaslurm.core.nearness import nearness, rank
from exaslurm.core.topology import Gpu, GpuLink, Hca, NodeTopology

__all__ = ["islands", "link_between", "nearest_hcas", "nearness"]


def nearest_hcas(gpu: Gpu, hcas: Sequence[Hca]) -> tuple[Hca, ...]:
    """The devices for RDMA that are nearest to a GPU (several where they are equally near), in
    their own order; network interfaces only where there is nothing else. Of a device that nothing
    tells the place of, nothing is known: it is near to no GPU."""
    placed = [hca for hca in hcas if hca.numa is not None or hca.pci_path or hca.cpus]
    fabric = [hca for hca in placed if hca.fabric != "ethernet"] or placed
    if not fabric:
        return ()
    ranks = [rank(nearness(gpu, hca)) for hca in fabric]
    return tuple(hca for hca, at in zip(fabric, ranks, strict=True) if at == min(ranks))


def link_between(topology: NodeTopology, a: int, b: int) -> GpuLink | None:
    """The direct link between two GPUs, by their places."""
    low, high = min(a, b), max(a, b)
    return next((link for link in topology.links if (link.a, link.b) == (low, high)), None)


def islands(topology: NodeTopology) -> tuple[tuple[int, ...], ...]:
    """Places of GPUs that are joined by direct links, over others where need be; each GPU is in
    one island, by the least place."""
    group = list(range(len(topology.gpus)))

    def root(place: int) -> int:
        while group[place] != place:
            place = group[place]
        return place

    for link in topology.links:
        low, high = sorted((root(link.a), root(link.b)))
        group[high] = low
    found: dict[int, list[int]] = {}
    for place in range(len(group)):
        found.setdefault(root(place), []).append(place)
    return tuple(tuple(found[first]) for first in sorted(found))
