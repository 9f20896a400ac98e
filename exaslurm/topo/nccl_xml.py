"""A node's topology from the XML of NCCL (``NCCL_TOPO_DUMP_FILE``) and RCCL.

It has NUMA nodes with their CPUs, PCI switches, GPUs and network devices, but no cores, no memory
and no host bridges (src/graph/xml.cc of NCCL).
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

_LINKS: Mapping[str, LinkKind] = {"nvlink": "nvlink", "xgmi": "xgmi"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where an element stands."""

    numa: int | None
    cpus: tuple[int, ...]
    path: tuple[str, ...]
    pci: str | None
    kind: str


def read_nccl(text: str, *, where: str) -> NodeTopology:
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
            (gpus if element.tag == "gpu" else nets).append((element, place))
    gpus.sort(key=lambda pair: int(pair[0].get("dev", "0")))
    found = tuple(_gpu(element, place) for element, place in gpus)
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
            yield from _walk(
                child,
                _Place(
                    numa=place.numa, cpus=place.cpus, path=above, pci=pci,
                    kind=child.get("class", "")[:6],
                ),
            )  # fmt: skip
        else:  # <nic>
            yield from _walk(child, place)


def _gpu(element: ElementTree.Element, place: _Place) -> Gpu:
    vendor: Vendor = "amd" if element.get("gcn") else "nvidia"
    return Gpu(
        index=int(element.get("dev", "0")),
        vendor=vendor,
        pci=place.pci,
        name=element.get("gcn") if vendor == "amd" else None,
        numa=place.numa,
        cpus=place.cpus,
        pci_path=place.path,
    )


def _hcas(nets: list[tuple[ElementTree.Element, _Place]]) -> tuple[Hca, ...]:
    """One device may have several ports, and be there once for each."""
    by_name: dict[str, list[tuple[ElementTree.Element, _Place]]] = {}
    for element, place in nets:
        by_name.setdefault(element.get("name", ""), []).append((element, place))
    found = []
    for name, parts in by_name.items():
        place = parts[0][1]
        fabric = _fabric(name, parts[0][0], place)
        layer = "InfiniBand" if fabric in ("infiniband", "omnipath") else "Ethernet"
        found.append(
            Hca(
                name=name,
                fabric=fabric,
                # NCCL lists only ports that are up.
                ports=tuple(
                    HcaPort(
                        number=max(1, int(element.get("port", "1"))),
                        state="ACTIVE",
                        rate_gbps=int(element.get("speed", "0")) / 1000,
                        link_layer=layer,
                        guid=element.get("guid"),
                    )
                    for element, _ in parts
                ),
                pci=place.pci,
                numa=place.numa,
                cpus=place.cpus,
                pci_path=place.path,
                interfaces=(name,) if fabric == "ethernet" else (),
            )
        )
    return tuple(sorted(found, key=lambda hca: natural(hca.name)))


def _fabric(name: str, element: ElementTree.Element, place: _Place) -> Fabric:
    if name.startswith(("cxi", "hsn")):
        return "slingshot"
    if int(element.get("guid", "0"), 0) == 0:
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
