"""Small files that are kept current, without ever waiting for the file system."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from exaslurm.errors import ExaslurmError
from exaslurm.util.clock import MACHINE, Clock
from exaslurm.util.files import write_atomic
from exaslurm.util.iothread import IoThread

log = logging.getLogger(__name__)

_WRITE_S = 10.0
_RETRY_S = 2.0


class Keeper:
    """Writes the last text that was given for each path, again and again until it is there."""

    def __init__(self, files: IoThread, clock: Clock = MACHINE) -> None:
        self._clock = clock
        self._files = files
        self._wanted: dict[Path, str] = {}
        self._written: dict[Path, str] = {}
        self._changed = asyncio.Event()

    def keep(self, path: Path, text: str) -> None:
        """This is what the file should hold."""
        if self._wanted.get(path) != text:
            self._wanted[path] = text
            self._changed.set()

    async def run(self) -> None:
        """Write, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not await self.flush():
                await asyncio.sleep(self._clock.machine_s(_RETRY_S))
                self._changed.set()

    async def flush(self, *, timeout_s: float = _WRITE_S) -> bool:
        """Write what is not written; false if that did not work (it is logged)."""
        for path, text in list(self._wanted.items()):
            if self._written.get(path) == text:
                continue
            try:
                await self._files.run(write_atomic, path, text, timeout_s=timeout_s)
            except ExaslurmError as error:
                log.warning("%s not written: %s", path.name, error)
                return False
            self._written[path] = text
        return True
