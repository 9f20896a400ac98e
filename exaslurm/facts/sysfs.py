"""NUMA nodes and InfiniBand ports from /sys, without any tool."""

from __future__ import annotations

import re
from pathlib import Path

from exaslurm.core.facts import HcaFact, NumaFact

SYS = Path("/sys")


def read(path: Path) -> str | None:
    """Stripped text of a sysfs file; None where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def cpu_list(text: str) -> tuple[int, ...]:
    """``0-3,8,10-11`` as numbers (the kernel's list format)."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return tuple(found)


def numa_nodes(sys: Path = SYS) -> tuple[NumaFact, ...]:
    """All NUMA nodes that have CPUs or memory."""
    found = []
    for directory in sorted((sys / "devices/system/node").glob("node[0-9]*"), key=_number):
        cpus = cpu_list(read(directory / "cpulist") or "")
        match = re.search(r"MemTotal:\s+(\d+) kB", read(directory / "meminfo") or "")
        mem_mib = int(match.group(1)) // 1024 if match else 0
        if cpus or mem_mib:
            found.append(NumaFact(index=_number(directory), cpus=cpus, mem_mib=mem_mib))
    return tuple(found)


def pci_numa(pci: str, sys: Path = SYS) -> int | None:
    """NUMA node of a PCI device (``0000:17:00.0``); None where the firmware does not say."""
    return _node_or_none(read(sys / "bus/pci/devices" / pci.lower() / "numa_node"))


def hcas(sys: Path = SYS) -> tuple[HcaFact, ...]:
    """Every port of every InfiniBand or RoCE device, also those that are down."""
    found = []
    for device in sorted((sys / "class/infiniband").glob("*")):
        numa = _node_or_none(read(device / "device" / "numa_node"))
        for port in sorted((device / "ports").glob("[0-9]*"), key=_number):
            # "4: ACTIVE" and "200 Gb/sec (4X HDR)":
            # https://docs.kernel.org/admin-guide/abi-stable-files.html (sysfs-class-infiniband)
            state = (read(port / "state") or "").partition(":")[2].strip() or "UNKNOWN"
            rate = re.match(r"[\d.]+", read(port / "rate") or "")
            found.append(
                HcaFact(
                    name=device.name,
                    port=_number(port),
                    state=state,
                    rate_gbps=float(rate.group()) if rate else 0.0,
                    link_layer=read(port / "link_layer") or "unknown",
                    numa=numa,
                )
            )
    return tuple(found)


def _number(path: Path) -> int:
    match = re.search(r"\d+$", path.name)
    return int(match.group()) if match else 0


def _node_or_none(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
