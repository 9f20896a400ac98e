"""GPUs and NVMe drives on the PCI bus of a /sys tree."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from exaslurm.core.topology import Drive, Gpu, NumaNode, Vendor
from exaslurm.topo.files import cpus_of, exists, pci_of, read, read_int

_VENDORS: dict[str, Vendor] = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
# VGA, 3D controller, other display, processing accelerator.
_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
_VGA = "0x0300"
_DRIVERS = ("nvidia", "amdgpu", "i915", "xe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The NUMA nodes, and whose memory some of them are (PCI address -> node)."""

    numa: tuple[NumaNode, ...]
    device_nodes: Mapping[str, int]


def pci_gpus(sys: Path, proc: Path, memory: Memory) -> tuple[Gpu, ...]:
    """GPUs in the order of their addresses, numbered within their vendor."""
    found: list[Gpu] = []
    for device in sorted((sys / "bus/pci/devices").glob("*")):
        vendor = _vendor(device, proc)
        if vendor is None:
            continue
        tiles = _tiles(device) if vendor == "intel" else ()
        size = read_int(device / "mem_info_vram_total") or _intel_memory(device, tiles)
        cpus = cpus_of(device, "local_cpu") or cpus_of(device, "local_cpus")
        driver = _nvidia_says(proc, device.name)
        found.append(
            Gpu(
                index=sum(gpu.vendor == vendor for gpu in found),
                vendor=vendor,
                pci=device.name,
                uuid=read(device / "unique_id") or driver.get("GPU UUID"),
                name=read(device / "product_name") or driver.get("Model") or None,
                mem_mib=size >> 20 if size else None,
                numa=near_node(read_int(device / "numa_node"), cpus, memory.numa),
                cpus=cpus,
                pci_path=pci_of(device)[1],
                memory_node=memory.device_nodes.get(device.name),
                tiles=len(tiles) or None,
            )
        )
    return tuple(found)


def _vendor(device: Path, proc: Path) -> Vendor | None:
    """Of an accelerator; None for anything else, a server's own display included."""
    kind = (read(device / "class") or "")[:6]
    if kind not in _CLASSES or exists(device / "physfn"):
        return None  # physfn: a virtual function, for guests of this machine
    if exists(proc / "driver/nvidia/gpus" / device.name):
        return "nvidia"
    vendor = _VENDORS.get(read(device / "vendor") or "")
    driver = Path(os.path.realpath(device / "driver")).name if exists(device / "driver") else ""
    if vendor == "nvidia" or driver in _DRIVERS:
        # An integrated Intel GPU sits on the root bus and serves no model.
        return None if vendor == "intel" and device.name == "0000:00:02.0" else vendor
    return None if kind == _VGA or driver else vendor


def _nvidia_says(proc: Path, pci: str) -> dict[str, str]:
    """What NVIDIA's driver tells anybody of a GPU (``Model``, ``GPU UUID``, ...)."""
    lines = (read(proc / "driver/nvidia/gpus" / pci / "information") or "").splitlines()
    pairs = (line.partition(":") for line in lines)
    # "GPU-????????-...": of a GPU that nobody has used since the start of the driver.
    return {name.strip(): text.strip() for name, _, text in pairs if "?" not in text}


def _tiles(device: Path) -> tuple[Path, ...]:
    """Of an Intel GPU: xe has a directory for each, i915 one for each graphics unit."""
    found = sorted(device.glob("tile[0-9]*")) or sorted(device.glob("drm/card*/gt/gt[0-9]*"))
    return tuple(found)


def _intel_memory(device: Path, tiles: Sequence[Path]) -> int:
    """Bytes; xe tells it for each tile, Intel's own build of i915 for the card."""
    sizes = [read_int(tile / "physical_vram_size_bytes") or 0 for tile in tiles]
    sizes += [read_int(path) or 0 for path in device.glob("drm/card*/lmem_total_bytes")]
    return sum(sizes)


def near_node(said: int | None, cpus: Sequence[int], numa: Sequence[NumaNode]) -> int | None:
    """The nearest NUMA node with CPUs: what the firmware says, the nearest to that where it has
    no CPUs, else the only one that the local CPUs belong to."""
    by_index = {node.index: place for place, node in enumerate(numa)}
    if said is not None and said in by_index:
        node = numa[by_index[said]]
        if node.cpus:
            return said
        with_cpus = [place for place, other in enumerate(numa) if other.cpus]
        if node.distances and with_cpus:
            return numa[min(with_cpus, key=lambda place: node.distances[place])].index
    homes = {node.index for node in numa if set(node.cpus) & set(cpus)}
    return homes.pop() if len(homes) == 1 else said if said in by_index else None


def drives(sys: Path) -> tuple[Drive, ...]:
    """NVMe drives (namespaces), by name."""
    found = []
    for block in sorted((sys / "class/block").glob("nvme*n[0-9]*")):
        # nvme0n1p1 is a partition; nvme0c0n1 a path of a multipath drive.
        if exists(block / "partition") or "c" in block.name.removeprefix("nvme"):
            continue
        pci, _ = pci_of(block)
        sectors = read_int(block / "size")
        node = read_int(sys / "bus/pci/devices" / pci / "numa_node") if pci else None
        found.append(
            Drive(
                name=block.name,
                pci=pci,
                numa=node,
                # The kernel counts sectors of 512 bytes, whatever the drive's own are.
                size_gib=round(sectors * 512 / 2**30, 1) if sectors else None,
                model=read(block / "device/model") or None,
            )
        )
    return tuple(found)
