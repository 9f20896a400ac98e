"""A node's topology from the XML of NCCL (``NCCL_TOPO_DUMP_FILE``) and RCCL.

It has NUMA nodes with their CPUs, PCI switches, GPUs and network devices, but no cores, no memory
and no host bridges (src/graph/xml.cc of NCCL). The files that cloud providers hand out for
``NCCL_TOPO_FILE`` have only the PCI functions, by class, which NCCL completes when it runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from exaslurm.core.topology import (
    Fabric,
    Gpu,
    GpuLink,
    Hca,
    HcaPort,
    LinkKind,
    NodeTopology,
    NumaNode,
    Vendor,
)
from exaslurm.errors import UserError
from exaslurm.topo.files import cpu_mask, natural, short_pci

_GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
_NET_CLASSES = ("0x0200", "0x0207")
_LINKS: Mapping[str, LinkKind] = {"nvlink": "nvlink", "xgmi": "xgmi"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where an element stands."""

    numa: int | None
    cpus: tuple[int, ...]
    path: tuple[str, ...]
    pci: str | None
    kind: str


def read_nccl(text: str | bytes, *, where: str) -> NodeTopology:
    """Topology of a dump. Raises UserError where the text is not one."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise UserError(f"{where}: not XML: {error}") from error
    if root.tag != "system":
        raise UserError(
            f"{where}: not a topology of NCCL or RCCL (its root is <{root.tag}>)",
            remedy="write one by running a program with NCCL_TOPO_DUMP_FILE=FILE",
        )
    numa = []
    gpus: list[tuple[ElementTree.Element, _Place]] = []
    nets: list[tuple[ElementTree.Element, _Place]] = []
    for cpu in root.iter("cpu"):
        index = int(cpu.get("numaid", "-1"))
        cpus = cpu_mask(cpu.get("affinity", ""))
        if index >= 0:
            numa.append(NumaNode(index=index, kind="cpu", cpus=cpus, mem_mib=0))
        start = _Place(numa=index if index >= 0 else None, cpus=cpus, path=(), pci=None, kind="")
        for element, place in _walk(cpu, start):
            is_gpu = element.tag == "gpu" or place.kind in _GPU_CLASSES
            (gpus if is_gpu else nets).append((element, place))
    # CUDA's numbers where the file has them; else they are those of the bus.
    gpus.sort(key=lambda pair: (int(pair[0].get("dev", "-1")), pair[1].pci or ""))
    found = tuple(
        _gpu(element, place, int(element.get("dev", str(number))))
        for number, (element, place) in enumerate(gpus)
    )
    return NodeTopology(
        host=Path(where).stem,
        sources=(f"NCCL XML {where}",),
        arch=next((cpu.get("arch", "") for cpu in root.iter("cpu")), ""),
        numa=tuple(sorted(numa, key=lambda node: node.index)),
        gpus=found,
        hcas=_hcas(nets),
        links=_links([element for element, _ in gpus], found),
    )


def _walk(
    element: ElementTree.Element, place: _Place
) -> Iterator[tuple[ElementTree.Element, _Place]]:
    for child in element:
        if child.tag in ("gpu", "net"):
            yield child, place
        elif child.tag == "pci":
            pci = short_pci(child.get("busid", ""))
            above = (*place.path, place.pci) if place.pci is not None else place.path
            kind = child.get("class", "")[:6]
            here = _Place(numa=place.numa, cpus=place.cpus, path=above, pci=pci, kind=kind)
            below = list(_walk(child, here))
            yield from below
            if not below and kind in (*_GPU_CLASSES, *_NET_CLASSES):
                yield child, here
        else:  # <nic>
            yield from _walk(child, place)


def _gpu(element: ElementTree.Element, place: _Place, index: int) -> Gpu:
    target = element.get("gcn")
    amd = target is not None or element.get("vendor") == "0x1002"
    vendor: Vendor = "amd" if amd else "nvidia"
    return Gpu(
        index=index,
        vendor=vendor,
        pci=place.pci,
        name=_target(target) if target is not None else None,
        numa=place.numa,
        cpus=place.cpus,
        pci_path=place.path,
    )


def _target(text: str) -> str:
    """``gfx942``; older RCCL wrote numbers (910: gfx90a)."""
    return text if text.startswith("gfx") else "gfx90a" if text == "910" else f"gfx{text}"


def _hcas(nets: list[tuple[ElementTree.Element, _Place]]) -> tuple[Hca, ...]:
    """One device may have several ports, and be there once for each."""
    by_name: dict[str, list[tuple[ElementTree.Element, _Place]]] = {}
    for element, place in nets:
        by_name.setdefault(element.get("name") or place.pci or "", []).append((element, place))
    found = []
    for name, parts in by_name.items():
        place = parts[0][1]
        fabric = _fabric(name, parts[0][0], place)
        layer = "InfiniBand" if fabric in ("infiniband", "omnipath") else "Ethernet"
        found.append(
            Hca(
                name=name,
                fabric=fabric,
                ports=tuple(_port(element, layer) for element, _ in parts if element.tag == "net"),
                pci=place.pci,
                numa=place.numa,
                cpus=place.cpus,
                pci_path=place.path,
                interfaces=(name,) if fabric == "ethernet" else (),
            )
        )
    return tuple(sorted(found, key=lambda hca: natural(hca.name)))


def _port(element: ElementTree.Element, layer: str) -> HcaPort:
    return HcaPort(
        number=max(1, int(element.get("port", "1"))),
        state="ACTIVE",  # NCCL lists only those that are up
        rate_gbps=int(element.get("speed", "0")) / 1000,
        link_layer=layer,
        guid=element.get("guid"),
    )


def _fabric(name: str, element: ElementTree.Element, place: _Place) -> Fabric:
    if name.startswith(("cxi", "hsn")):
        return "slingshot"
    if element.tag == "net" and int(element.get("guid", "0"), 0) == 0:
        return "ethernet"  # NCCL's socket transport
    return "infiniband" if place.kind == "0x0207" else "roce"


def _links(elements: list[ElementTree.Element], gpus: tuple[Gpu, ...]) -> tuple[GpuLink, ...]:
    """Links that end at a switch (NVSwitch) join every pair that has some."""
    places = {gpu.pci: place for place, gpu in enumerate(gpus)}
    found: dict[tuple[int, int], GpuLink] = {}
    switched: Counter[int] = Counter()
    for place, element in enumerate(elements):
        for link in element:
            kind = _LINKS.get(link.tag)
            if kind is None:
                continue
            lanes = int(link.get("count", "1"))
            other = places.get(short_pci(link.get("target", "")))
            if other is not None:
                a, b = min(place, other), max(place, other)
                found[a, b] = GpuLink(a=a, b=b, kind=kind, lanes=lanes)
            elif link.get("tclass", "").startswith("0x0680"):
                switched[place] += lanes
    for a in switched:
        for b in switched:
            if a < b:
                lanes = min(switched[a], switched[b])
                found[a, b] = GpuLink(a=a, b=b, kind="nvlink", lanes=lanes)
    return tuple(found[pair] for pair in sorted(found))
