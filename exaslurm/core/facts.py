"""What a node says about itself, as seen from inside the job step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from exaslurm.core.topology import UNKNOWN, NodeTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFact:
    """A GPU that the step may use. ``visible_id`` is what goes into the vendor's
    ``*_VISIBLE_DEVICES``; the other fields are None where nothing on the node tells. ``pci`` is
    the key to its place in the node's topology."""

    visible_id: str
    vendor: str
    uuid: str | None = None
    pci: str | None = None
    numa: int | None = None
    name: str | None = None
    mem_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One node of a cell.

    ``topology`` is the whole node; what Slurm granted of it are ``cpus`` and ``gpus``. ``cpus``
    are the logical CPUs that the step may run on, ``cpus_granted`` the number that Slurm says it
    granted (None outside Slurm): where it is larger than the machine, Slurm was told a claim.
    ``order`` is the node's place in the expanded node list of its component. ``switch`` is its
    leaf switch, ``switches`` are all those above it, the topmost first; ``features`` are Slurm's
    (None: not known). ``measures`` are figures measured on the node, by their names in conditions.
    """

    node: str
    het_group: int
    order: int
    address: str
    agent_port: int
    port_base: int
    cpus: tuple[int, ...]
    cpus_granted: int | None
    mem_mib: int
    gpus: tuple[GpuFact, ...] = ()
    topology: NodeTopology = UNKNOWN
    switch: str | None = None
    switches: tuple[str, ...] = ()
    features: tuple[str, ...] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    measures: Mapping[str, float] = field(default_factory=dict)

    def above(self) -> tuple[str, ...]:
        """The switches that the node is below, the topmost first; empty where nobody knows."""
        if self.switches:
            return self.switches
        return () if self.switch is None else (self.switch,)
