"""Keeping the cell's registry record current, without ever waiting for the file system."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable

from exaslurm.core.cell import CellRecord
from exaslurm.errors import ExaslurmError, LeaseLost, StateError
from exaslurm.registry.read import read_record
from exaslurm.registry.write import write_record
from exaslurm.rundir import RunDir
from exaslurm.util.clock import MACHINE, Clock
from exaslurm.util.iothread import IoThread
from exaslurm.util.waiting import set_within

log = logging.getLogger(__name__)

_WRITE_S = 10.0
_RETRY_S = 2.0


class Publisher:
    """Writes the record when it changes, and every third of a lease.

    ``seq`` goes on above what the file says, so that readers see a restarted controller's record
    as newer. ``on_published`` is called with each record that is in the file.
    """

    def __init__(
        self,
        run_dir: RunDir,
        files: IoThread,
        on_published: Callable[[CellRecord], None],
        clock: Clock = MACHINE,
    ) -> None:
        self._clock = clock
        self.seq = 0
        self.lost: str | None = None
        self._run_dir = run_dir
        self._files = files
        self._on_published = on_published
        self._wanted: CellRecord | None = None
        self._changed = asyncio.Event()

    async def recall(self, cell: str) -> None:
        """Find out the number that the file has."""
        try:
            found = await self._files.run(
                read_record, self._run_dir.record(cell), timeout_s=_WRITE_S
            )
        except StateError:
            return  # there is none, or not one that anybody can read
        self.seq = found.seq

    def want(self, record: CellRecord) -> None:
        """Say what the record should be (its ``seq`` is not looked at)."""
        record = dataclasses.replace(record, seq=0)
        if record != self._wanted:
            self._wanted = record
            self._changed.set()

    async def run(self) -> None:
        """Write, until cancelled."""
        while True:
            pause_s = _RETRY_S
            self._changed.clear()
            if await self.flush() and self._wanted is not None:
                pause_s = self._wanted.lease_s / 3
            await set_within(self._changed, self._clock.machine_s(pause_s))

    async def flush(self, *, timeout_s: float = _WRITE_S) -> bool:
        """Write the record now; false if that did not work (it is logged)."""
        wanted = self._wanted
        if wanted is None or self.lost is not None:
            return True
        record = dataclasses.replace(wanted, seq=self.seq + 1)
        self.seq += 1
        started = time.monotonic()
        try:
            await self._files.run(write_record, self._run_dir, record, timeout_s=timeout_s)
        except LeaseLost as error:
            self.lost = str(error)
            log.error("%s", error)
            return True
        except ExaslurmError as error:
            log.warning("registry record not written: %s", error)
            return False
        seconds = time.monotonic() - started
        if seconds > 1.0:
            log.warning("the registry record took %.1f s to write", seconds)
        self._on_published(record)
        return True
