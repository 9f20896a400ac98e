"""The topology of the node that this runs on, from every source that it has."""

from __future__ import annotations

import platform
from pathlib import Path

from exaslurm.topo.kfd import kfd_accessible
from exaslurm.topo.levelzero import with_levelzero
from exaslurm.topo.merge import Drivers
from exaslurm.topo.nvml import with_nvml
from exaslurm.topo.sysfs import PROC, SYS, read_sysfs


def read_node(sys: Path = SYS, proc: Path = PROC, *, host: str = "") -> Drivers:
    """What the kernel shows below ``sys`` and ``proc``, completed by the drivers' libraries; these
    know this machine only, and are not asked about another root."""
    topology = read_sysfs(sys, proc, host=host, arch=platform.machine())
    amd = kfd_accessible(sys, topology.gpus)
    if sys != SYS:
        return Drivers(topology=topology, accessible=amd)
    nvidia = with_nvml(topology)
    intel = with_levelzero(nvidia.topology)
    known = (*(nvidia.accessible or ()), *(amd or ()), *(intel.accessible or ()))
    return Drivers(topology=intel.topology, accessible=known or None)
