"""How much memory of the step's GPUs is used now: NVIDIA's library, the amdgpu driver's files.

Intel's drivers tell it to privileged users only, so of those nothing is known.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from exaslurm.core.cell import GpuMemory
from exaslurm.core.facts import GpuFact

log = logging.getLogger(__name__)

SYS = Path("/sys")


class GpuMemoryReader:
    """Asks again and again; NVIDIA's library is loaded once."""

    def __init__(self, gpus: Sequence[GpuFact], *, sys: Path = SYS) -> None:
        self._gpus = gpus
        self._sys = sys
        self._nvml: Any = None
        self._handles: dict[str, Any] = {}
        self._told = False

    def read(self) -> tuple[GpuMemory, ...]:
        """Of those GPUs that tell; drivers may take their time."""
        found = [self._of(gpu) for gpu in self._gpus]
        return tuple(memory for memory in found if memory is not None)

    def _of(self, gpu: GpuFact) -> GpuMemory | None:
        if gpu.vendor == "nvidia":
            return self._nvidia(gpu)
        return self._amd(gpu) if gpu.vendor == "amd" else None

    def _nvidia(self, gpu: GpuFact) -> GpuMemory | None:
        try:
            nvml = self._library()
            handle = self._handles.get(gpu.visible_id)
            if handle is None:
                if gpu.uuid is not None:
                    handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
                else:
                    handle = nvml.nvmlDeviceGetHandleByPciBusId(gpu.pci or "")
                self._handles[gpu.visible_id] = handle
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        except Exception as error:  # ImportError, NVMLError of many kinds, OSError of ctypes
            if not self._told:
                log.warning("memory of GPUs is not known: %s", error)
            self._told = True
            return None
        return GpuMemory(
            visible_id=gpu.visible_id,
            used_mib=int(memory.used) >> 20,
            limit_mib=int(memory.total) >> 20,
        )

    def _library(self) -> Any:
        if self._nvml is None:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
        return self._nvml

    def _amd(self, gpu: GpuFact) -> GpuMemory | None:
        directory = self._sys / "bus" / "pci" / "devices" / (gpu.pci or "none")
        with contextlib.suppress(OSError, ValueError):
            used = int((directory / "mem_info_vram_used").read_text(encoding="ascii"))
            total = int((directory / "mem_info_vram_total").read_text(encoding="ascii"))
            return GpuMemory(visible_id=gpu.visible_id, used_mib=used >> 20, limit_mib=total >> 20)
        return None
