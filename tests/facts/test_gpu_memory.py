"""Memory of GPUs that is in use: NVIDIA's library (a stand-in), files of the amdgpu driver."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from exaslurm.core.cell import GpuMemory
from exaslurm.core.facts import GpuFact
from exaslurm.facts.gpu_memory import GpuMemoryReader

NVIDIA = GpuFact(visible_id="0", vendor="nvidia", uuid="GPU-1b", pci="0000:1b:00.0")
BARE = GpuFact(visible_id="1", vendor="nvidia", pci="0000:43:00.0")
AMD = GpuFact(visible_id="0", vendor="amd", pci="0000:c1:00.0")


class Library:
    """As pynvml: one GPU by UUID, one by bus id."""

    def __init__(self, *, broken: bool = False) -> None:
        self.broken = broken
        self.began = 0

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
        self.began += 1
        if self.broken:
            raise OSError("no driver")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        assert uuid == "GPU-1b"
        return "first"

    def nvmlDeviceGetHandleByPciBusId(self, pci: str) -> str:  # noqa: N802
        assert pci == "0000:43:00.0"
        return "second"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:  # noqa: N802
        used = {"first": 70 << 30, "second": 1 << 30}[handle]
        return SimpleNamespace(used=used, total=80 << 30)


def use(monkeypatch: pytest.MonkeyPatch, library: Library) -> Library:
    monkeypatch.setitem(sys.modules, "pynvml", library)  # type: ignore[arg-type]
    return library


def test_nvidia(monkeypatch: pytest.MonkeyPatch) -> None:
    library = use(monkeypatch, Library())
    reader = GpuMemoryReader((NVIDIA, BARE))
    for _ in range(2):
        assert reader.read() == (
            GpuMemory(visible_id="0", used_mib=70 << 10, limit_mib=80 << 10),
            GpuMemory(visible_id="1", used_mib=1 << 10, limit_mib=80 << 10),
        )
    assert library.began == 1


def test_no_driver_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use(monkeypatch, Library(broken=True))
    reader = GpuMemoryReader((NVIDIA,))
    assert reader.read() == reader.read() == ()
    assert caplog.text.count("memory of GPUs is not known: no driver") == 1


def test_amd(tmp_path: Path) -> None:
    directory = tmp_path / "bus/pci/devices/0000:c1:00.0"
    directory.mkdir(parents=True)
    (directory / "mem_info_vram_total").write_text(f"{64 << 30}\n")
    (directory / "mem_info_vram_used").write_text(f"{3 << 30}\n")
    found = GpuMemoryReader((AMD,), sys=tmp_path).read()
    assert found == (GpuMemory(visible_id="0", used_mib=3 << 10, limit_mib=64 << 10),)
    assert GpuMemoryReader((AMD,), sys=tmp_path / "none").read() == ()


def test_nobody_tells_of_intel() -> None:
    assert GpuMemoryReader((GpuFact(visible_id="0", vendor="intel"),)).read() == ()
