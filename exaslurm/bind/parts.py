"""What of a node is free, what a replica wants of it, and what it gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from exaslurm.core.topology import Core, Gpu, Hca, HcaPort, NodeTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """One replica: GPUs, logical CPUs, and MiB of host memory."""

    gpus: int
    cpus: int
    mem_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedGpu:
    """A GPU that Slurm granted. ``visible_id`` is its number inside the step; ``gpu`` what the
    topology knows of it (perhaps nothing but its vendor)."""

    visible_id: str
    gpu: Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """What may be handed out.

    ``cores`` are whole cores, each with those of its logical CPUs that Slurm granted; each counts
    as ``width`` CPUs (0: cores are shared, and not handed out). ``down``: there are too few cores
    to give a whole one to each replica that asked for a part of one more. ``ports`` are those that
    engines may use. ``keep`` is the first logical CPU of the core that is the last to go (agent and
    Ray are on it); ``mem_mib`` is what is free of each NUMA node with memory of its own, and
    ``port_use`` how many ranks use a port already.
    """

    topology: NodeTopology
    cores: tuple[Core, ...]
    width: int = 1
    down: bool = False
    gpus: tuple[GrantedGpu, ...] = ()
    ports: tuple[tuple[Hca, HcaPort], ...] = ()
    keep: int | None = None
    mem_mib: Mapping[int, int] = field(default_factory=dict)
    port_use: Mapping[str, int] = field(default_factory=dict)

    def cores_of(self, want: Want) -> int:
        """How many cores a replica takes: at least one, and no part of one."""
        if not self.width:
            return 0
        number = want.cpus // self.width if self.down else -(-want.cpus // self.width)
        return max(1, number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One rank of a replica: its GPU (None: a replica without GPUs has one part), its cores, and
    its network port."""

    gpu: GrantedGpu | None
    cores: tuple[Core, ...]
    port: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What one replica gets. ``mem_nodes`` are the NUMA nodes of its memory, empty where there
    is no choice."""

    parts: tuple[Part, ...]
    mem_nodes: tuple[int, ...] = ()

    @property
    def cores(self) -> tuple[Core, ...]:
        """Of all parts, in the order of the CPUs."""
        found = [core for part in self.parts for core in part.cores]
        return tuple(sorted(found, key=lambda core: core.cpus))

    @property
    def cpus(self) -> tuple[int, ...]:
        """Logical CPUs of all parts."""
        return tuple(sorted(cpu for part in self.parts for core in part.cores for cpu in core.cpus))
