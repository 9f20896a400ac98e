"""One topology from several sources: each fact from the first source that has it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from exaslurm.core.topology import Gpu, GpuLink, NodeTopology

T = TypeVar("T", bound=Any)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Drivers:
    """What the vendors' libraries add to a topology. ``accessible`` are the GPUs that this process
    may use, in the libraries' order (None: no library answered)."""

    topology: NodeTopology
    accessible: tuple[Gpu, ...] | None


def completed_by(topology: NodeTopology, library: NodeTopology) -> Drivers:
    """What the kernel shows with what a library lists, which it may let this process use."""
    merged = merge(topology, library)
    # Kernels before 5.10 do not tell that a node of memory alone is a device's.
    of_gpus = {gpu.memory_node for gpu in merged.gpus}
    numa = tuple(
        dataclasses.replace(node, kind="device")
        if node.index in of_gpus and not node.cpus
        else node
        for node in merged.numa
    )
    merged = dataclasses.replace(merged, numa=numa)
    accessible = tuple(merged.gpu_at(gpu.pci) or gpu for gpu in library.gpus)
    return Drivers(topology=merged, accessible=accessible)


def merge(first: NodeTopology, second: NodeTopology) -> NodeTopology:
    """``first`` with what only ``second`` knows. Cores and NUMA nodes come whole from the first
    that has any; devices are the same if their PCI address, UUID or name is. The order of GPUs is
    that of ``first``."""
    gpus, places = _gpus(first.gpus, second.gpus)
    links = {
        (min(places[link.a], places[link.b]), max(places[link.a], places[link.b])): link
        for link in second.links
    }
    links |= {(link.a, link.b): link for link in first.links}
    return dataclasses.replace(
        first,
        host=first.host or second.host,
        sources=(*first.sources, *second.sources),
        arch=first.arch or second.arch,
        cores=first.cores or second.cores,
        numa=first.numa or second.numa,
        gpus=gpus,
        hcas=_devices(first.hcas, second.hcas, lambda hca: hca.name),
        drives=_devices(first.drives, second.drives, lambda drive: drive.name),
        links=tuple(
            GpuLink(a=pair[0], b=pair[1], kind=link.kind, lanes=link.lanes)
            for pair, link in sorted(links.items())
        ),
    )


def _gpus(first: Sequence[Gpu], second: Sequence[Gpu]) -> tuple[tuple[Gpu, ...], list[int]]:
    """(all GPUs, the place there of each of ``second``)."""
    found = list(first)
    places = []
    for gpu in second:
        place = next((i for i, known in enumerate(first) if _same(known, gpu)), None)
        if place is None:
            place = len(found)
            index = sum(known.vendor == gpu.vendor for known in found)
            found.append(dataclasses.replace(gpu, index=index))
        else:
            found[place] = completed(found[place], gpu)
        places.append(place)
    return tuple(found), places


def _same(one: Gpu, other: Gpu) -> bool:
    if one.pci is not None and other.pci is not None:
        return one.pci == other.pci
    return one.uuid is not None and one.uuid == other.uuid


def _devices(first: tuple[T, ...], second: tuple[T, ...], key: Callable[[T], str]) -> tuple[T, ...]:
    known = {key(device): device for device in first}
    for device in second:
        name = key(device)
        known[name] = completed(known[name], device) if name in known else device
    return tuple(known.values())


def completed(first: T, second: T) -> T:
    """``first`` with its empty fields (None, an empty text or list) filled from ``second``."""
    empty = {
        field.name: getattr(second, field.name)
        for field in dataclasses.fields(first)
        if getattr(first, field.name) in (None, "", ())
    }
    return dataclasses.replace(first, **empty)
