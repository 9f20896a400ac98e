"""How near two devices of a node are, in the words of ``nvidia-smi topo -m``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from exaslurm.core.topology import Gpu, GpuLink, Hca, Nearness, NodeTopology

# From near to far.
NEARNESS: tuple[Nearness, ...] = ("SELF", "PIX", "PXB", "PHB", "NODE", "SYS")


class Device(Protocol):
    """What has a place on the PCI bus."""

    @property
    def pci(self) -> str | None: ...
    @property
    def numa(self) -> int | None: ...
    @property
    def cpus(self) -> tuple[int, ...]: ...
    @property
    def pci_path(self) -> tuple[str, ...]: ...


def nearness(one: Device, other: Device) -> Nearness:
    """``SELF`` for one PCI function; ``PIX`` where they share their next bridge, ``PXB`` another
    one, ``PHB`` the host bridge alone; ``NODE`` for one NUMA node, else ``SYS``, also where
    nothing is known of one of them.

    Both functions of one card (GCDs of one package, ports of one HCA) are ``PIX``.
    """
    if one.pci is not None and one.pci == other.pci:
        return "SELF"
    shared = 0
    for a, b in zip(one.pci_path, other.pci_path, strict=False):
        if a != b:
            break
        shared += 1
    rooted = shared > 0 and one.pci_path[0].startswith("pci")
    if shared > rooted:
        # For the kernel a switch is two bridges: the upstream port that its devices share, and one
        # downstream port for each of them. In NCCL's files, which have no roots, it is one.
        apart = max(len(one.pci_path), len(other.pci_path)) - shared
        return "PIX" if apart <= rooted else "PXB"
    if shared:
        return "PHB"
    return "NODE" if same_node(one, other) else "SYS"


def same_node(one: Device, other: Device) -> bool:
    """Whether both hang on one NUMA node, or on the same several ones."""
    if one.numa is not None and other.numa is not None:
        return one.numa == other.numa
    return bool(one.cpus) and one.cpus == other.cpus


def rank(near: Nearness) -> int:
    """0 for the nearest."""
    return NEARNESS.index(near)


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
