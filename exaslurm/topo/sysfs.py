"""A node's topology from the files of the kernel (/sys and /proc), without any tool.

Roots are parameters: a recorded tree is read as the node that it was recorded on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from exaslurm.core.topology import Core, MemoryKind, NodeTopology, NumaNode
from exaslurm.topo.files import cpu_list, cpus_of, number, read, read_int
from exaslurm.topo.kfd import kfd_gpus
from exaslurm.topo.sysfs_net import hcas
from exaslurm.topo.sysfs_pci import Memory, drives, pci_gpus

SYS = Path("/sys")
PROC = Path("/proc")


def read_sysfs(
    sys: Path = SYS, proc: Path = PROC, *, host: str = "", arch: str = ""
) -> NodeTopology:
    """The whole node, as the kernel shows it to anybody: what a cgroup hides from this process is
    in it too."""
    memory = Memory(device_nodes=nvidia_memory_nodes(proc), numa=numa_nodes(sys, proc))
    gpus = pci_gpus(sys, proc, memory)
    completed, links = kfd_gpus(sys, gpus)
    return NodeTopology(
        host=host,
        sources=(f"sysfs {sys}",),
        arch=arch,
        cores=cores(sys, memory.numa),
        numa=memory.numa,
        gpus=completed,
        hcas=hcas(sys, memory.numa),
        drives=drives(sys),
        links=links,
    )


def read_root(root: Path) -> NodeTopology:
    """A recorded tree with ``sys`` and ``proc`` below ``root``."""
    info = dict(
        line.split(": ", 1)
        for line in (read(root / "proc/hwloc-nofile-info") or "").splitlines()
        if ": " in line
    )
    host = info.get("HostName") or read(root / "proc/sys/kernel/hostname") or root.name
    return read_sysfs(root / "sys", root / "proc", host=host, arch=info.get("Architecture", ""))


def numa_nodes(sys: Path = SYS, proc: Path = PROC) -> tuple[NumaNode, ...]:
    """All NUMA nodes that have CPUs or memory, by number."""
    directories = sorted((sys / "devices/system/node").glob("node[0-9]*"), key=number)
    of_gpus = set(nvidia_memory_nodes(proc).values())
    of_devices = _initiators(sys)
    found: list[NumaNode] = []
    rows: list[list[int]] = []
    for directory in directories:
        index = number(directory)
        cpus = cpus_of(directory, "cpu")
        match = re.search(r"MemTotal:\s+(\d+) kB", read(directory / "meminfo") or "")
        mem_mib = int(match.group(1)) // 1024 if match else 0
        rows.append([int(word) for word in (read(directory / "distance") or "").split()])
        device = index in of_gpus or (not cpus and index in of_devices)
        found.append(
            NumaNode(index=index, kind=memory_kind(cpus, device), cpus=cpus, mem_mib=mem_mib)
        )
    # The kernel's rows have a column for every node that is online, empty ones too.
    kept = [i for i, node in enumerate(found) if node.cpus or node.mem_mib]
    return tuple(
        NumaNode(
            index=found[i].index,
            kind=found[i].kind,
            cpus=found[i].cpus,
            mem_mib=found[i].mem_mib,
            distances=tuple(rows[i][j] for j in kept) if len(rows[i]) == len(found) else (),
        )
        for i in kept
    )


def memory_kind(cpus: Sequence[int], device: bool) -> MemoryKind:
    """``device``: a driver or the firmware says that the memory is a GPU's."""
    if cpus:
        return "cpu"
    return "device" if device else "special"


def nvidia_memory_nodes(proc: Path = PROC) -> dict[str, int]:
    """PCI address of a GPU -> the NUMA node that its memory is (POWER9, Grace Hopper)."""
    found = {}
    for status in sorted((proc / "driver/nvidia/gpus").glob("*/numa_status")):
        match = re.search(r"^Node:\s+(\d+)", read(status) or "", re.MULTILINE)
        if match:
            found[status.parent.name] = int(match.group(1))
    return found


def _initiators(sys: Path) -> set[int]:
    """Nodes that the firmware calls a device's own (ACPI generic initiators, kernel 5.10): on
    Grace Hopper the memory of the GPU."""
    text = read(sys / "devices/system/node/has_generic_initiator") or ""
    return set(cpu_list(text))


def cores(sys: Path, numa: Sequence[NumaNode]) -> tuple[Core, ...]:
    """Physical cores that are online, by their first logical CPU."""
    home = {cpu: node.index for node in numa for cpu in node.cpus}
    threads: dict[tuple[int, ...], tuple[int, tuple[int, ...]]] = {}
    for directory in sorted((sys / "devices/system/cpu").glob("cpu[0-9]*"), key=number):
        topology = directory / "topology"
        siblings = cpus_of(topology, "core_cpus") or cpus_of(topology, "thread_siblings")
        if not siblings or read(directory / "online") == "0":
            continue
        package = read_int(topology / "physical_package_id") or 0
        threads.setdefault(siblings, (package, _l3(directory)))
    caches = sorted({cache for _, cache in threads.values() if cache})
    return tuple(
        Core(
            cpus=cpus,
            package=package,
            numa=home.get(cpus[0]),
            l3=caches.index(cache) if cache else None,
        )
        for cpus, (package, cache) in sorted(threads.items())
    )


def _l3(cpu: Path) -> tuple[int, ...]:
    for index in (cpu / "cache").glob("index[0-9]*"):
        if read(index / "level") == "3":
            return cpus_of(index, "shared_cpu")
    return ()
