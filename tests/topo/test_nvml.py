"""What NVIDIA's library adds. The library itself is a stand-in: no GPU is at hand in tests."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from exaslurm.core.topology import Gpu, NodeTopology, NumaNode
from exaslurm.topo.nvml import with_nvml

BUS = ("00000000:1B:00.0", "00000000:43:00.0", "00000000:52:00.0")
TOPOLOGY = NodeTopology(
    host="n1",
    sources=("sysfs",),
    gpus=tuple(
        Gpu(index=i, vendor="nvidia", pci=f"0000:{bus}:00.0", numa=i, cpus=(i,))
        for i, bus in enumerate(("1b", "43", "52"))
    ),
)


class NotSupported(Exception):
    pass


@dataclass
class Library:
    """As pynvml, for GPUs of which each sees some (bus id, link) pairs."""

    bus: tuple[str, ...]
    links: dict[int, list[str]] = field(default_factory=dict)
    numa: dict[int, int] = field(default_factory=dict)
    broken: str = ""
    shut: int = 0
    NVML_NVLINK_MAX_LINKS = 18

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
        self._fail("nvmlInit")

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.shut += 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._fail("nvmlDeviceGetCount")
        return len(self.bus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(busId=self.bus[handle].encode())

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return f"GPU-{self.bus[handle][9:11]}"

    def nvmlDeviceGetName(self, handle: int) -> bytes:  # noqa: N802
        return b"NVIDIA H100"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        self._fail("nvmlDeviceGetMemoryInfo")
        return SimpleNamespace(total=80 << 30)

    def nvmlDeviceGetNumaNodeId(self, handle: int) -> int:  # noqa: N802
        if handle not in self.numa:
            raise NotSupported
        return self.numa[handle]

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:  # noqa: N802
        if handle not in self.links:
            raise NotSupported
        return int(link < len(self.links[handle]))

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> Any:  # noqa: N802
        return SimpleNamespace(busId=self.links[handle][link])

    def _fail(self, name: str) -> None:
        if self.broken == name:
            raise NotSupported(name)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(library: Library) -> Library:
        monkeypatch.setitem(sys.modules, "pynvml", library)  # type: ignore[arg-type]
        return library

    return install


def test_names_memory_and_direct_links(use: Any) -> None:
    a, b, c = BUS
    library = use(Library(BUS, links={0: [b, b, c], 1: [a, a], 2: [a]}, numa={1: 12}))
    found = with_nvml(TOPOLOGY)
    first, second, _ = found.topology.gpus
    assert (first.uuid, first.name, first.mem_mib) == ("GPU-1B", "NVIDIA H100", 81920)
    assert (first.numa, first.cpus) == (0, (0,))  # the kernel's word stands
    assert (first.memory_node, second.memory_node) == (None, 12)
    assert [(link.a, link.b, link.lanes) for link in found.topology.links] == [
        (0, 1, 2), (0, 2, 1),
    ]  # fmt: skip
    assert found.topology.sources == ("sysfs", "NVML")
    assert found.accessible == found.topology.gpus
    assert library.shut == 1


def test_memory_that_the_kernel_does_not_call_a_gpus(use: Any) -> None:
    numa = (
        NumaNode(index=0, kind="cpu", cpus=(0,), mem_mib=1024),
        NumaNode(index=12, kind="special", cpus=(), mem_mib=1024),
        NumaNode(index=13, kind="special", cpus=(), mem_mib=1024),
    )
    use(Library(BUS, numa={0: 0, 1: 12}))
    found = with_nvml(dataclasses.replace(TOPOLOGY, numa=numa)).topology
    assert [node.kind for node in found.numa] == ["cpu", "device", "special"]


def test_links_over_switches(use: Any) -> None:
    switch = "00000000:05:00.0"
    use(Library(BUS, links={0: [switch] * 18, 1: [switch] * 18, 2: [switch] * 12}))
    links = with_nvml(TOPOLOGY).topology.links
    assert [(link.a, link.b, link.lanes) for link in links] == [(0, 1, 18), (0, 2, 12), (1, 2, 12)]


def test_a_step_sees_some_of_the_gpus(use: Any) -> None:
    """In a device cgroup the library counts what it may see; links name places of the node."""
    use(Library(BUS[1:], links={0: [BUS[2]] * 4, 1: [BUS[1]] * 4}))
    found = with_nvml(TOPOLOGY)
    assert [gpu.index for gpu in found.topology.gpus] == [0, 1, 2]
    assert [gpu.pci for gpu in found.accessible or ()] == ["0000:43:00.0", "0000:52:00.0"]
    assert [(link.a, link.b) for link in found.topology.links] == [(1, 2)]


def test_a_gpu_that_the_bus_does_not_show(use: Any) -> None:
    use(Library(("00000009:01:00.0",)))
    found = with_nvml(NodeTopology(host="n1"))
    assert [(gpu.index, gpu.pci) for gpu in found.topology.gpus] == [(0, "0009:01:00.0")]


@pytest.mark.parametrize("broken", ["nvmlInit", "nvmlDeviceGetCount"])
def test_no_driver(use: Any, broken: str) -> None:
    library = use(Library(BUS, broken=broken))
    found = with_nvml(TOPOLOGY)
    assert (found.topology, found.accessible) == (TOPOLOGY, None)
    assert library.shut == (broken != "nvmlInit")


def test_memory_that_the_gpu_shares_with_the_processor(use: Any) -> None:
    use(Library(BUS, broken="nvmlDeviceGetMemoryInfo"))
    assert with_nvml(TOPOLOGY).topology.gpus[0].mem_mib is None


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert with_nvml(TOPOLOGY).topology == TOPOLOGY


def test_another_root_is_not_this_machine(use: Any, tmp_path: Path) -> None:
    from exaslurm.topo.node import read_node

    use(Library(BUS))
    assert read_node(tmp_path, tmp_path).topology.gpus == ()
