"""A node's topology from the XML that ``lstopo`` writes (hwloc 1, 2 and 3).

Objects are related by their CPU sets, not by their places in the tree: these differ between the
versions (a NUMA node is a parent in 1.x and a memory child since 2.0). Kinds that say nothing of
placement (Group, Die, MemCache, Misc, ...) are passed through.
https://www.open-mpi.org/projects/hwloc/doc/ (hwloc.dtd, hwloc2.dtd)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from exaslurm.core.topology import Core, MemoryKind, NodeTopology, NumaNode
from exaslurm.errors import UserError
from exaslurm.topo.files import cpu_mask, short_pci
from exaslurm.topo.hwloc_io import PciDevice, devices, links, pci_device

_VERSIONS = ("1", "2", "3")
_REMEDY = "write one with: lstopo --of xml FILE"
_OLD_TYPES = {"Socket": "Package"}


@dataclass(slots=True)
class _Found:
    bits: bool  # osdev_type is a set of bits, as since 3.0
    packages: list[tuple[int, frozenset[int]]] = field(default_factory=list)
    caches: list[frozenset[int]] = field(default_factory=list)
    cores: list[frozenset[int]] = field(default_factory=list)
    units: list[int] = field(default_factory=list)
    numa: list[tuple[ElementTree.Element, frozenset[int]]] = field(default_factory=list)
    pci: list[PciDevice] = field(default_factory=list)


def read_hwloc(text: str | bytes, *, where: str) -> NodeTopology:
    """Topology of an export. Raises UserError where the text is not one."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise UserError(f"{where}: not XML: {error}") from error
    machine = root.find("object")
    if root.tag != "topology" or machine is None:
        why = f"its root is <{root.tag}>" if root.tag != "topology" else "it has no machine"
        raise UserError(f"{where}: not an hwloc topology ({why})", remedy=_REMEDY)
    version = root.get("version", "1")  # 1.x wrote none
    if version.partition(".")[0] not in _VERSIONS:
        raise UserError(
            f"{where}: hwloc's format {version!r}; {', '.join(_VERSIONS)} can be read",
            remedy=_REMEDY,
        )
    found = _Found(bits=version.startswith("3"))
    _walk(machine, found, _cpus(machine), ())
    numa = _numa(found, root)
    info = {**_infos(machine), **_infos(root)}
    gpus, hcas, drives, places = devices(found.pci, numa, _gpu_memory(found))
    return NodeTopology(
        host=info.get("HostName", "") or Path(where).stem,
        sources=(f"hwloc {version} XML {where}",),
        arch=info.get("Architecture", ""),
        cores=_cores(found, numa),
        numa=numa,
        gpus=gpus,
        hcas=hcas,
        drives=drives,
        links=links(root, places),
    )


def _walk(
    element: ElementTree.Element, found: _Found, cpus: frozenset[int], path: tuple[str, ...]
) -> None:
    kind = element.get("type", "")
    kind = _OLD_TYPES.get(kind, kind)
    index = int(element.get("os_index", "-1"))
    own = _cpus(element) if element.get("cpuset") is not None else cpus
    if kind == "Package":
        found.packages.append((index, own))
    elif kind == "L3Cache" or (kind == "Cache" and element.get("depth") == "3"):
        found.caches.append(own)
    elif kind == "Core":
        found.cores.append(own)
    elif kind == "PU":
        found.units.append(index)
    elif kind == "NUMANode":
        # Without the CPUs that a cgroup took away a node would look like one without CPUs.
        found.numa.append((element, _cpus(element, "complete_cpuset") or own))
    elif kind == "Bridge":
        path = (*path, _bridge(element))
    elif kind == "PCIDev":
        found.pci.append(pci_device(element, path, cpus, bits=found.bits))
    for child in element.findall("object"):
        _walk(child, found, own if kind != "PCIDev" else cpus, path)


def _cpus(element: ElementTree.Element, name: str = "cpuset") -> frozenset[int]:
    return frozenset(cpu_mask(element.get(name, "")))


def _infos(element: ElementTree.Element) -> dict[str, str]:
    return {info.get("name", ""): info.get("value", "") for info in element.findall("info")}


def _bridge(element: ElementTree.Element) -> str:
    """The bridge's own address, or ``pci0000:40`` for a host bridge: as the kernel names them."""
    own = element.get("pci_busid")
    if own:
        return own.lower()
    match = re.match(r"([0-9a-fA-F]+):\[([0-9a-fA-F]+)-", element.get("bridge_pci", ""))
    return f"pci{match.group(1)}:{match.group(2)}".lower() if match else "pci"


def _cores(found: _Found, numa: tuple[NumaNode, ...]) -> tuple[Core, ...]:
    units = set(found.units)
    # Where the machine tells of no cores, each processing unit is one.
    sets = found.cores or [frozenset([unit]) for unit in found.units]
    caches = sorted(found.caches, key=lambda cpus: min(cpus, default=1 << 30))
    home = {cpu: node.index for node in numa for cpu in node.cpus}
    return tuple(
        Core(
            cpus=cpus,
            package=next((max(0, index) for index, held in found.packages if cpus[0] in held), 0),
            numa=home.get(cpus[0]),
            l3=next((i for i, held in enumerate(caches) if cpus[0] in held), None),
        )
        for cpus in sorted(tuple(sorted(cpus & units)) for cpus in sets if cpus & units)
    )


def _numa(found: _Found, root: ElementTree.Element) -> tuple[NumaNode, ...]:
    """Nodes by number. A node without CPUs of its own has those of its place in the tree: the
    first node of a place is the one that they belong to."""
    ordered = sorted(found.numa, key=lambda pair: (_rank(pair[0]), _index(pair[0])))
    taken: set[frozenset[int]] = set()
    nodes = []
    for element, cpus in ordered:
        subtype = element.get("subtype") or _infos(element).get("Type", "")
        owner = subtype != "GPUMemory" and bool(cpus) and cpus not in taken
        kind: MemoryKind = "cpu" if owner else "special"
        if subtype == "GPUMemory":
            kind = "device"
        if owner:
            taken.add(cpus)
        nodes.append(
            NumaNode(
                index=_index(element),
                kind=kind,
                cpus=tuple(sorted(cpus)) if owner else (),
                mem_mib=int(element.get("local_memory", "0")) >> 20,
            )
        )
    nodes.sort(key=lambda node: node.index)
    rows = _distances(root, [_index(element) for element, _ in found.numa])
    indexes = [node.index for node in nodes]
    return tuple(
        NumaNode(
            index=node.index,
            kind=node.kind,
            cpus=node.cpus,
            mem_mib=node.mem_mib,
            distances=tuple(rows[node.index, other] for other in indexes)
            if all((node.index, other) in rows for other in indexes)
            else (),
        )
        for node in nodes
    )


def _gpu_memory(found: _Found) -> dict[str, int]:
    """PCI address -> the NUMA node that this GPU's memory is, where the export tells."""
    nodes = [element for element, _ in found.numa if element.get("subtype") == "GPUMemory"]
    owners = ((_infos(element).get("PCIBusID"), _index(element)) for element in nodes)
    return {short_pci(pci): index for pci, index in owners if pci}


def _rank(element: ElementTree.Element) -> bool:
    return element.get("subtype") not in (None, "DRAM")


def _index(element: ElementTree.Element) -> int:
    return int(element.get("os_index", "0"))


def _distances(root: ElementTree.Element, logical: list[int]) -> dict[tuple[int, int], int]:
    """(from, to) -> latency between NUMA nodes, in the kernel's units."""
    for matrix in root.iter("distances2"):
        if matrix.get("type") != "NUMANode" or matrix.get("name") not in (None, "NUMALatency"):
            continue
        if matrix.get("indexing") != "os":
            continue
        nodes = [int(word) for part in matrix.findall("indexes") for word in _words(part)]
        values = [int(word) for part in matrix.findall("u64values") for word in _words(part)]
        return _square(nodes, values)
    for matrix in root.iter("distances"):  # 1.x: multiples of the base, in logical order
        base = float(matrix.get("latency_base", "1"))
        latencies = [
            round(float(cell.get("value", "0")) * base) for cell in matrix.findall("latency")
        ]
        if len(latencies) == len(logical) ** 2:
            return _square(logical, latencies)
    return {}


def _square(nodes: list[int], values: list[int]) -> dict[tuple[int, int], int]:
    if len(values) != len(nodes) ** 2:
        return {}
    pairs = [(a, b) for a in nodes for b in nodes]
    return dict(zip(pairs, values, strict=True))


def _words(element: ElementTree.Element) -> Iterator[str]:
    yield from (element.text or "").split()
