"""How near two devices of a node are, in the words of ``nvidia-smi topo -m``."""

from __future__ import annotations

from typing import Protocol

from exaslurm.core.topology import Nearness

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
