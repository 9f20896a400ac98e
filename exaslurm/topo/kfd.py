"""AMD GPUs as the compute driver lists them (``/sys/class/kfd``): order, memory and xGMI links.

https://docs.kernel.org/gpu/amdgpu/ and drivers/gpu/drm/amd/amdkfd/kfd_topology.c of the kernel.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from exaslurm.core.topology import Gpu, GpuLink
from exaslurm.topo.files import number, read

XGMI = 11  # CRAT_IOLINK_TYPE_XGMI


def properties(path: Path) -> dict[str, int]:
    """``name number`` lines."""
    found = {}
    for line in (read(path) or "").splitlines():
        name, _, value = line.partition(" ")
        if value.isascii() and value.strip().isdigit():
            found[name] = int(value)
    return found


def kfd_nodes(sys: Path) -> list[Path]:
    """Directories of the GPUs in the driver's order, which is ROCm's. Under a device cgroup the
    driver refuses to tell of GPUs that this process may not use."""
    nodes = sorted((sys / "class/kfd/kfd/topology/nodes").glob("[0-9]*"), key=number)
    return [node for node in nodes if (read(node / "gpu_id") or "0") != "0"]


def kfd_address(values: dict[str, int]) -> str:
    """PCI address from ``domain`` and ``location_id`` (bus << 8 | device << 3 | function)."""
    place = values.get("location_id", 0)
    domain = values.get("domain", 0)
    return f"{domain:04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7:x}"


def kfd_accessible(sys: Path, gpus: Sequence[Gpu]) -> tuple[Gpu, ...] | None:
    """The GPUs that the driver lets this process use, in its order; None without the driver."""
    by_address = {gpu.pci: gpu for gpu in gpus}
    addresses = [kfd_address(properties(node / "properties")) for node in kfd_nodes(sys)]
    return tuple(by_address[pci] for pci in addresses if pci in by_address) or None


def kfd_gpus(sys: Path, gpus: Sequence[Gpu]) -> tuple[tuple[Gpu, ...], tuple[GpuLink, ...]]:
    """The GPUs of the PCI bus with what the driver adds, sorted by vendor and index, and the links
    between them."""
    nodes = kfd_nodes(sys)
    by_node = {number(node): properties(node / "properties") for node in nodes}
    order = {kfd_address(values): i for i, values in enumerate(by_node.values())}
    by_address = {kfd_address(by_node[number(node)]): node for node in nodes}
    amd = [gpu for gpu in gpus if gpu.vendor == "amd"]
    if all(gpu.pci in order for gpu in amd):
        amd.sort(key=lambda gpu: order[gpu.pci or ""])
    # Else a cgroup hides some, and the only order of the whole node is that of the bus.
    completed = [
        _complete(gpu, index, by_address.get(gpu.pci or "")) for index, gpu in enumerate(amd)
    ]
    everything = sorted(
        [gpu for gpu in gpus if gpu.vendor != "amd"] + completed,
        key=lambda gpu: (gpu.vendor, gpu.index),
    )
    places = {gpu.pci: i for i, gpu in enumerate(everything)}
    return tuple(everything), _links(nodes, by_node, places)


def _complete(gpu: Gpu, index: int, node: Path | None) -> Gpu:
    if node is None:
        return dataclasses.replace(gpu, index=index)
    banks = [properties(bank / "properties") for bank in (node / "mem_banks").glob("[0-9]*")]
    size = sum(bank.get("size_in_bytes", 0) for bank in banks) >> 20
    values = properties(node / "properties")
    unique = values.get("unique_id")
    return dataclasses.replace(
        gpu,
        index=index,
        uuid=gpu.uuid or (f"{unique:016x}" if unique else None),
        name=gpu.name or _target(values.get("gfx_target_version", 0)),
        mem_mib=gpu.mem_mib or size or None,
    )


def _target(version: int) -> str | None:
    """90010 (9, 0, 10) is gfx90a: the stepping is one hexadecimal digit."""
    major, minor, stepping = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{stepping:x}" if version else None


def _links(
    nodes: Sequence[Path], by_node: dict[int, dict[str, int]], places: dict[str | None, int]
) -> tuple[GpuLink, ...]:
    found: dict[tuple[int, int], GpuLink] = {}
    for node in nodes:
        for link in sorted((node / "io_links").glob("[0-9]*"), key=number):
            values = properties(link / "properties")
            ends = [by_node.get(values.get(end, -1)) for end in ("node_from", "node_to")]
            if values.get("type") != XGMI or ends[0] is None or ends[1] is None:
                continue
            a, b = (places.get(kfd_address(end)) for end in ends if end is not None)
            if a is None or b is None or a == b:
                continue
            pair = (min(a, b), max(a, b))
            lanes = _lanes(values)
            found[pair] = GpuLink(a=pair[0], b=pair[1], kind="xgmi", lanes=lanes)
    return tuple(found[pair] for pair in sorted(found))


def _lanes(values: dict[str, int]) -> int:
    """Links side by side: the driver states the sum of their bandwidths and that of one, where it
    states any; both are 0 on old kernels."""
    low, high = values.get("min_bandwidth", 0), values.get("max_bandwidth", 0)
    return max(1, round(high / low)) if low else 1
