"""What NVIDIA's library knows beyond the kernel: names, UUIDs, memory, order, NVLinks."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from exaslurm.core.topology import Gpu, GpuLink, NodeTopology
from exaslurm.topo.files import short_pci
from exaslurm.topo.merge import Drivers, completed_by

log = logging.getLogger(__name__)

_NO_NODE = 0xFFFFFFFF


def with_nvml(topology: NodeTopology) -> Drivers:
    """The topology completed by NVML; unchanged where the library or the driver is missing."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:  # ImportError, NVMLError of many kinds, OSError of ctypes
        log.debug("no NVML: %s", error)
        return Drivers(topology=topology, accessible=None)
    try:
        found = _ask(pynvml, topology.host)
    except Exception as error:
        log.warning("NVML does not describe the GPUs: %s", error)
        return Drivers(topology=topology, accessible=None)
    finally:
        pynvml.nvmlShutdown()
    return completed_by(topology, found)


def _ask(nvml: Any, host: str) -> NodeTopology:
    gpus: list[Gpu] = []
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    for index, handle in enumerate(handles):
        # Unified memory (GB10 and the like) has no size of its own.
        memory = _try(nvml, "nvmlDeviceGetMemoryInfo", handle)
        node = _try(nvml, "nvmlDeviceGetNumaNodeId", handle)
        gpus.append(
            Gpu(
                index=index,
                vendor="nvidia",
                pci=short_pci(_text(nvml.nvmlDeviceGetPciInfo(handle).busId)),
                uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
                name=_text(nvml.nvmlDeviceGetName(handle)),
                mem_mib=int(memory.total) >> 20 if memory else None,
                memory_node=None if node == _NO_NODE else node,
            )
        )
    return NodeTopology(
        host=host, sources=("NVML",), gpus=tuple(gpus), links=_nvlinks(nvml, handles, gpus)
    )


def _nvlinks(nvml: Any, handles: list[Any], gpus: list[Gpu]) -> tuple[GpuLink, ...]:
    """Direct links are counted per pair. Links that end at a switch join every pair that has some,
    by the lesser number of the two."""
    places = {gpu.pci: i for i, gpu in enumerate(gpus)}
    pairs: Counter[tuple[int, int]] = Counter()
    switched: Counter[int] = Counter()
    for place, handle in enumerate(handles):
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            if not _try(nvml, "nvmlDeviceGetNvLinkState", handle, link):
                continue
            other = _try(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
            end = places.get(short_pci(_text(other.busId))) if other is not None else None
            if end is None:
                switched[place] += 1
            elif place < end:
                pairs[place, end] += 1
    for a in switched:
        for b in switched:
            if a < b:
                pairs[a, b] += min(switched[a], switched[b])
    return tuple(
        GpuLink(a=a, b=b, kind="nvlink", lanes=lanes) for (a, b), lanes in sorted(pairs.items())
    )


def _try(nvml: Any, name: str, *args: Any) -> Any:
    """None where this GPU, driver or library does not support the question."""
    try:
        return getattr(nvml, name)(*args)
    except Exception as error:
        log.debug("%s: %s", name, error)
        return None


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
