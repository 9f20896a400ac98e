"""The node's memory, looked at every few seconds, and when the kernel last killed for it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Sequence

from exaslurm.core.cell import MemoryFigures
from exaslurm.core.facts import GpuFact
from exaslurm.errors import ExaslurmError
from exaslurm.facts.gpu_memory import GpuMemoryReader
from exaslurm.facts.memory import memory_figures, oom_kills, tightest
from exaslurm.util.iothread import IoThread

log = logging.getLogger(__name__)

_READ_S = 5.0
# An API server ends within seconds after its engine core was killed.
_RECENT_S = 20.0


class MemoryWatch:
    """Figures of host and GPUs. Drivers are asked on a thread of its own: a sick card takes its
    time."""

    def __init__(self, gpus: Sequence[GpuFact], every_s: float) -> None:
        self.figures: MemoryFigures | None = None
        self._every_s = every_s
        self._gpus = GpuMemoryReader(gpus)
        self._thread = IoThread("memory")

    async def run(self) -> None:
        """For ever: bring ``figures`` up to date."""
        while True:
            try:
                self.figures = await self._thread.run(self._look, timeout_s=_READ_S)
            except (ExaslurmError, OSError, ValueError) as error:
                self.figures = None
                log.warning("memory of the node: %s", error)
            await asyncio.sleep(self._every_s)

    def _look(self) -> MemoryFigures:
        return dataclasses.replace(memory_figures(), gpus=self._gpus.read())


class OomWatch:
    """Counts the kernel's kills for memory in the step's cgroup. One count is for all engines of
    the node, so what matters of it is when it grew."""

    def __init__(
        self,
        kills: Callable[[], int | None] = oom_kills,
        clock: Callable[[], float] = time.monotonic,
        pid: str = "self",
    ) -> None:
        self._kills = kills
        self._clock = clock
        self._pid = pid
        self._last = kills()
        self._grown_s: float | None = None

    def look(self) -> None:
        """To be called every few seconds."""
        now = self._kills()
        if now is not None and self._last is not None and now > self._last:
            self._grown_s = self._clock()
        self._last = self._last if now is None else now

    def has_killed(self) -> str | None:
        """What a process that has ended just now may have been killed for, in words: the limit;
        None if the kernel has not killed in the last seconds."""
        self.look()
        if self._grown_s is None or self._clock() - self._grown_s > _RECENT_S:
            return None
        limit = tightest(pid=self._pid)
        if limit is None:
            return "no memory is left on the node"
        return f"limit {limit.limit_bytes / (1 << 30):.3g} GiB, cgroup {limit.cgroup}"
