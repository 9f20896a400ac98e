"""Following the cells of a deployment: their records, and live what they say.

Records are read on a helper thread; each cell's controller is asked over HTTP. A silent
controller, a hung file system or a late lease never takes a replica away that answers: when
neither speaks, the replicas themselves are asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from exaslurm.core.cell import CellRecord
from exaslurm.errors import ExaslurmError, RegistryError
from exaslurm.registry.live import Replicas, from_record, from_state
from exaslurm.registry.read import RecordReader
from exaslurm.registry.replica import Listener, LoadListener, Replica
from exaslurm.rundir import RunDir
from exaslurm.util.iothread import IoThread

log = logging.getLogger(__name__)

RECORDS_EVERY_S = 2.0
STATE_EVERY_S = 1.0
SILENT_AFTER_S = 5.0
PROBE_EVERY_S = 5.0
_FILE_TIMEOUT_S = 10.0
_HTTP_TIMEOUT_S = 3.0
_PROBES_AT_ONCE = 32
_SILENT = "neither its cell nor the replica itself answers"


class Cell:
    """What is known of one cell. Times are monotonic seconds of this process.

    A record may be the last word of a cell that ended long ago. So until its number changes or
    its controller answers (``confirmed``), only replicas that answer themselves are shown as
    ready; after that, silence alone takes none away.
    """

    def __init__(self, record: CellRecord, now_s: float) -> None:
        self.record = record
        self.confirmed = False
        self.replicas: Replicas = from_record(record)
        self.renewed_s = now_s
        self.heard_s: float | None = None
        self.said: bytes = b""
        self.answering: dict[str, bool] = {}
        """By probes, while nobody else speaks for the replicas."""

    def take_record(self, record: CellRecord, now_s: float) -> None:
        """A record was read: a new number renews the lease; its content counts while the
        controller is silent, or when it is another job's."""
        before, self.record = self.record, record
        if (record.generation, record.job_id) != (before.generation, before.job_id):
            self.replicas, self.renewed_s = from_record(record), now_s
            self.heard_s, self.said = None, b""
            self.confirmed = True
            self.answering.clear()
            return
        if record.seq != before.seq:
            self.renewed_s = now_s
            self.confirmed = True
        if record.replicas != before.replicas and not self.is_heard(now_s):
            self.replicas = from_record(record)

    def take_state(self, raw: bytes, now_s: float) -> bool:
        """The controller answered; true if that changes anything. RegistryError as of
        ``from_state``."""
        fresh = self.replicas
        if raw != self.said:
            fresh = from_state(raw, self.record, self.replicas)
        self.said, self.heard_s = raw, now_s
        changed = fresh != self.replicas or bool(self.answering) or not self.confirmed
        self.replicas = fresh
        self.confirmed = True
        self.answering.clear()
        return changed

    def is_heard(self, now_s: float) -> bool:
        return self.heard_s is not None and now_s - self.heard_s < SILENT_AFTER_S

    def lease_age_s(self, now_s: float) -> float:
        return now_s - self.renewed_s

    def is_orphaned(self, now_s: float) -> bool:
        """Neither the controller nor its record has spoken (for too long)."""
        late = not self.confirmed or self.lease_age_s(now_s) > self.record.lease_s
        return late and not self.is_heard(now_s)

    def visible(self) -> list[Replica]:
        """The replicas as routers shall see them."""
        return [
            item
            if not item.ready or self.answering.get(item.id, self.confirmed)
            else dataclasses.replace(item, ready=False, state="silent", cause=_SILENT)
            for item in self.replicas.values()
        ]


class RegistryFollower:
    """A ``ReplicaSource`` over a run directory. Used inside one event loop."""

    def __init__(
        self,
        run_dir: RunDir,
        internal_key: str,
        *,
        files: IoThread | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_dir = run_dir
        self._key = internal_key
        self._files = files or IoThread("registry")
        self._clock = clock
        self._reader = RecordReader(run_dir)
        self._cells: dict[str, Cell] = {}
        self._askers: dict[str, asyncio.Task[None]] = {}
        self._listeners: list[Listener] = []
        self._load_listeners: list[LoadListener] = []
        self._shown: tuple[Replica, ...] = ()
        self._trouble: str | None = None
        self._probe_now = asyncio.Event()

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)
        listener(self._shown)

    def subscribe_loads(self, listener: LoadListener) -> None:
        self._load_listeners.append(listener)

    def recheck(self, replica: str) -> None:
        """Nothing to do: the cell watches its replicas and is asked every second."""

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """All replicas of all cells, as last known."""
        return self._shown

    def describe(self) -> Mapping[str, Any]:
        now_s = self._clock()
        cells = [
            {
                "cell": name,
                "job_id": cell.record.job_id,
                "generation": cell.record.generation,
                "state_url": cell.record.state_url,
                "heard": cell.is_heard(now_s),
                "lease_age_s": round(cell.lease_age_s(now_s), 1),
                "lease_s": cell.record.lease_s,
                "replicas": len(cell.replicas),
            }
            for name, cell in self._cells.items()
        ]
        return {"kind": "registry", "cells": cells, "trouble": self._trouble}

    async def run(self) -> None:
        """Follow until cancelled."""
        timeout = aiohttp.ClientTimeout(total=_HTTP_TIMEOUT_S)
        headers = {"Authorization": f"Bearer {self._key}"}
        async with aiohttp.ClientSession(
            headers=headers, timeout=timeout, trust_env=False
        ) as session:
            prober = asyncio.create_task(self._probe_orphans(session))
            try:
                while True:
                    try:
                        await self._read_records(session)
                    except Exception:  # this loop must not end: new cells would never be seen
                        log.exception("reading the registry")
                    await asyncio.sleep(RECORDS_EVERY_S)
            finally:
                tasks = [prober, *self._askers.values()]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _read_records(self, session: aiohttp.ClientSession) -> None:
        try:
            records = await self._files.run(self._reader.read, timeout_s=_FILE_TIMEOUT_S)
        except ExaslurmError as error:
            self._note(f"registry not readable, going on with what is known: {error}")
            return
        self._note(None)
        now_s = self._clock()
        for name in [name for name in self._cells if name not in records]:
            log.info("cell %s has left the registry", name)
            del self._cells[name]
            self._askers.pop(name).cancel()
        for name, record in records.items():
            cell = self._cells.get(name)
            if cell is None:
                log.info("cell %s: %d replicas on record", name, len(record.replicas))
                self._cells[name] = cell = Cell(record, now_s)
                self._askers[name] = asyncio.create_task(self._ask(session, cell))
            else:
                cell.take_record(record, now_s)
        self._publish()

    async def _ask(self, session: aiohttp.ClientSession, cell: Cell) -> None:
        """Ask one cell's controller again and again."""
        silent = False
        while True:
            try:
                raw = await _get(session, cell.record.state_url.rstrip("/") + "/v1/state")
                if cell.take_state(raw, self._clock()):
                    self._publish()
                if silent:
                    log.info("the controller of cell %s answers again", cell.record.cell)
                silent = False
            except RegistryError as error:
                if not silent:
                    log.warning("going on with what is known: %s", error)
                silent = True
                if not cell.confirmed and not cell.answering:
                    self._probe_now.set()
            except Exception:  # this loop must not end silently: the cell would freeze
                log.exception("cell %s", cell.record.cell)
            await asyncio.sleep(STATE_EVERY_S)

    async def _probe_orphans(self, session: aiohttp.ClientSession) -> None:
        """Ask the replicas of cells that nobody speaks for whether they live."""
        slots = asyncio.Semaphore(_PROBES_AT_ONCE)

        async def probe(cell: Cell, replica: Replica) -> None:
            async with slots:
                # Not /health: it needs no key, so anybody's engine on that port would do.
                alive = await _answers(session, replica.url.rstrip("/") + "/v1/models")
            cell.answering[replica.id] = alive

        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._probe_now.wait(), PROBE_EVERY_S)
            self._probe_now.clear()
            now_s = self._clock()
            orphans = [cell for cell in self._cells.values() if cell.is_orphaned(now_s)]
            await asyncio.gather(
                *(probe(cell, item) for cell in orphans for item in cell.replicas.values())
            )
            if orphans:
                self._publish()

    def _publish(self) -> None:
        """Tell the listeners if anything is different."""
        shown = tuple(item for cell in self._cells.values() for item in cell.visible())
        if shown == self._shown:
            return
        self._shown = shown
        for listener in self._listeners:
            listener(shown)

    def _note(self, trouble: str | None) -> None:
        if trouble != self._trouble:
            if trouble:
                log.warning("%s", trouble)
            else:
                log.info("the registry is readable again")
        self._trouble = trouble


async def _get(session: aiohttp.ClientSession, url: str) -> bytes:
    try:
        async with session.get(url) as answer:
            if answer.status != 200:
                raise RegistryError(f"{url} answered {answer.status}")
            return await answer.read()
    except (aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError) as error:
        raise RegistryError(
            f"no answer from {url}: {str(error) or type(error).__name__}"
        ) from error


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    with contextlib.suppress(RegistryError):
        await _get(session, url)
        return True
    return False
