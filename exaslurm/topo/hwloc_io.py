"""PCI devices of an hwloc export: GPUs, network devices, drives, and the links between GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from exaslurm.core.topology import (
    Drive,
    Fabric,
    Gpu,
    GpuLink,
    Hca,
    HcaPort,
    LinkKind,
    NumaNode,
    Vendor,
)
from exaslurm.topo.files import natural

_VENDORS: dict[str, Vendor] = {"10de": "nvidia", "1002": "amd", "8086": "intel"}
# Bits of osdev_type since 3.0, and the numbers that stood for them before.
_STORAGE, _GPU, _COPROCESSOR, _NETWORK, _RDMA = 1, 4, 8, 16, 32
_OLD = {0: _STORAGE, 1: _GPU, 2: _NETWORK, 3: _NETWORK | _RDMA, 5: _COPROCESSOR}
_UUIDS = ("NVIDIAUUID", "AMDUUID", "LevelZeroUUID")
_SIZES = ("GlobalMemorySize", "VRAMSize", "HBMSize")
_STATES = {"1": "DOWN", "2": "INIT", "3": "ARMED", "4": "ACTIVE"}
_MATRICES: dict[str, LinkKind] = {
    "NVLinkBandwidth": "nvlink",
    "XGMIHops": "xgmi",
    "XGMIBandwidth": "xgmi",
    "XeLinkBandwidth": "xelink",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OsDevice:
    """What the system makes of a PCI device: an interface, a disk, a CUDA device."""

    name: str
    kinds: int
    subtype: str
    gp_index: str
    info: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PciDevice:
    """A PCI function with the bridges above it and the CPUs of its place."""

    address: str
    kind: str
    vendor: str
    gp_index: str
    name: str | None
    path: tuple[str, ...]
    cpus: frozenset[int]
    system: tuple[OsDevice, ...]


def pci_device(
    element: ElementTree.Element, path: tuple[str, ...], cpus: frozenset[int], *, bits: bool
) -> PciDevice:
    """``pci_type`` is ``0302 [10de:1094] [00de:0088] a1 00``: class, vendor and device, ..."""
    match = re.match(r"\s*([0-9a-fA-F]{4})\s+\[([0-9a-fA-F]{4}):", element.get("pci_type", ""))
    info = {part.get("name", ""): part.get("value", "") for part in element.findall("info")}
    return PciDevice(
        address=element.get("pci_busid", "").lower(),
        kind=match.group(1).lower() if match else "",
        vendor=match.group(2).lower() if match else "",
        gp_index=element.get("gp_index", ""),
        name=element.get("name") or info.get("PCIDevice"),
        path=path,
        cpus=cpus,
        system=tuple(
            _os_device(child, bits)
            for child in element.iter("object")
            if child.get("type") == "OSDev"
        ),
    )


def _os_device(element: ElementTree.Element, bits: bool) -> OsDevice:
    kinds = int(element.get("osdev_type", "0"))
    return OsDevice(
        name=element.get("name", ""),
        kinds=kinds if bits else _OLD.get(kinds, 0),
        subtype=element.get("subtype", ""),
        gp_index=element.get("gp_index", ""),
        info={info.get("name", ""): info.get("value", "") for info in element.findall("info")},
    )


def devices(
    found: Sequence[PciDevice], numa: Sequence[NumaNode], memory: Mapping[str, int]
) -> tuple[tuple[Gpu, ...], tuple[Hca, ...], tuple[Drive, ...], Mapping[str, int]]:
    """(GPUs, network devices, drives, gp_index -> place among the GPUs). ``memory``: PCI address ->
    the NUMA node that this GPU's memory is."""
    found = sorted(found, key=lambda device: device.address)
    accelerators = sorted(
        ((vendor, device) for device in found if (vendor := _gpu_vendor(device)) is not None),
        key=lambda pair: (pair[0], pair[1].address),
    )
    vendors = [vendor for vendor, _ in accelerators]
    gpus = tuple(
        _gpu(device, vendor, vendors[:place].count(vendor), numa, memory)
        for place, (vendor, device) in enumerate(accelerators)
    )
    places = {
        index: place
        for place, (_, device) in enumerate(accelerators)
        for index in (device.gp_index, *(part.gp_index for part in device.system))
        if index
    }
    hcas = [hca for device in found for hca in _hcas(device, numa)]
    drives = [
        _drive(part, device, numa)
        for device in found
        for part in device.system
        if part.kinds & _STORAGE and part.name.startswith("nvme")
    ]
    return (
        gpus,
        tuple(sorted(hcas, key=lambda hca: natural(hca.name))),
        tuple(sorted(drives, key=lambda drive: natural(drive.name))),
        places,
    )


def _near(device: PciDevice, numa: Sequence[NumaNode]) -> int | None:
    """The only NUMA node that the device's CPUs belong to."""
    homes = [node.index for node in numa if set(node.cpus) & device.cpus]
    return homes[0] if len(homes) == 1 else None


def _gpu_vendor(device: PciDevice) -> Vendor | None:
    vendor = _VENDORS.get(device.vendor)
    computes = any(part.kinds & _COPROCESSOR for part in device.system)
    # A bare VGA controller of AMD or Intel is a server's display, unless something computes on it.
    accelerator = device.kind in ("0302", "0380", "1200")
    accelerator |= device.kind == "0300" and (computes or vendor == "nvidia")
    return vendor if accelerator else None


def _gpu(
    device: PciDevice,
    vendor: Vendor,
    index: int,
    numa: Sequence[NumaNode],
    memory: Mapping[str, int],
) -> Gpu:
    info = {name: value for part in device.system for name, value in part.info.items()}
    size = next((value for name, value in info.items() if name.endswith(_SIZES)), None)
    return Gpu(
        index=index,
        vendor=vendor,
        pci=device.address,
        uuid=next((info[name] for name in _UUIDS if name in info), None),
        name=info.get("GPUModel") or device.name,
        mem_mib=kib(size) >> 10 if size else None,
        numa=_near(device, numa),
        cpus=tuple(sorted(device.cpus)),
        pci_path=device.path,
        memory_node=memory.get(device.address),
    )


def _hcas(device: PciDevice, numa: Sequence[NumaNode]) -> list[Hca]:
    """The RDMA devices of a PCI function with its interfaces, or each interface on its own."""
    interfaces = tuple(
        part.name for part in device.system if part.kinds & _NETWORK and not part.kinds & _RDMA
    )
    rdma = [part for part in device.system if part.kinds & _RDMA]
    if rdma:
        # One RDMA device per function but for soft ones; the interfaces are the first one's.
        return [
            _hca(part, device, numa, interfaces if place == 0 else ())
            for place, part in enumerate(rdma)
        ]
    alone = [part for part in device.system if part.name in interfaces]
    return [_hca(part, device, numa, (part.name,)) for part in alone]


def _hca(
    part: OsDevice, device: PciDevice, numa: Sequence[NumaNode], interfaces: tuple[str, ...]
) -> Hca:
    numbers = sorted(
        int(match.group(1)) for name in part.info if (match := re.match(r"Port(\d+)State$", name))
    )
    fabric = _fabric(part, device, interfaces)
    layer = "Ethernet" if fabric in ("ethernet", "roce", "slingshot") else "InfiniBand"
    ports = tuple(
        HcaPort(
            number=number,
            state=_STATES.get(part.info[f"Port{number}State"], "UNKNOWN"),
            rate_gbps=0.0,
            link_layer=layer,
            guid=_guid(part.info.get(f"Port{number}GID0")),
            lid=int(part.info.get(f"Port{number}LID", "0"), 0) or None,
        )
        for number in numbers
    )
    return Hca(
        name=part.name,
        fabric=fabric,
        ports=ports,
        pci=device.address,
        numa=_near(device, numa),
        cpus=tuple(sorted(device.cpus)),
        pci_path=device.path,
        interfaces=interfaces,
        node_guid=part.info.get("NodeGUID"),
        board=device.name,
    )


def _fabric(part: OsDevice, device: PciDevice, interfaces: tuple[str, ...]) -> Fabric:
    if part.name.startswith(("cxi", "hsn")) or part.subtype == "Slingshot":
        return "slingshot"
    if part.name.startswith("hfi1"):
        return "omnipath"
    if not part.kinds & _RDMA:
        return "infiniband" if device.kind == "0207" else "ethernet"
    # The class of the function tells a port's usual layer; an ib interface settles it.
    on_infiniband = any(name.startswith("ib") for name in interfaces)
    return "infiniband" if device.kind != "0200" or on_infiniband else "roce"


def _drive(part: OsDevice, device: PciDevice, numa: Sequence[NumaNode]) -> Drive:
    size = part.info.get("Size")
    return Drive(
        name=part.name,
        pci=device.address,
        numa=_near(device, numa),
        size_gib=round(kib(size) / 2**20, 1) if size else None,
        model=part.info.get("Model"),
    )


def links(root: ElementTree.Element, places: Mapping[str, int]) -> tuple[GpuLink, ...]:
    """From the matrices of bandwidths or hops between GPUs; how many lanes they stand for, the
    export does not say."""
    found: dict[tuple[int, int], LinkKind] = {}
    for tag in ("distances2", "distances2hetero"):
        for matrix in root.iter(tag):
            kind = _MATRICES.get(matrix.get("name", ""))
            if kind is None:
                continue
            hops = matrix.get("name", "").endswith("Hops")
            words = _values(matrix, "indexes")
            # Of several types: "OSDev:12".
            at = [places.get(word.rpartition(":")[2]) for word in words]
            values = [int(word) for word in _values(matrix, "u64values")]
            if len(values) != len(at) ** 2:
                continue
            for i, a in enumerate(at):
                for j, b in enumerate(at):
                    value = values[i * len(at) + j]
                    near = value == 1 if hops else value > 0
                    if a is not None and b is not None and a < b and near:
                        found[a, b] = kind
    return tuple(GpuLink(a=a, b=b, kind=kind) for (a, b), kind in sorted(found.items()))


def _values(matrix: ElementTree.Element, tag: str) -> list[str]:
    return [word for part in matrix.findall(tag) for word in (part.text or "").split()]


def _guid(gid: str | None) -> str | None:
    """The lower half of a port's first GID."""
    parts = (gid or "").split(":")
    return ":".join(parts[4:]) if len(parts) == 8 else None


def kib(text: str) -> int:
    """``11796032KiB`` (3.0) or ``11796032`` (before)."""
    match = re.match(r"\d+", text)
    return int(match.group()) if match else 0
