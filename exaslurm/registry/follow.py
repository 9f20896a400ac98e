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
from collections.abc import Mapping
from typing import Any

from exaslurm.core.cell import CellRecord, EngineLoad
from exaslurm.errors import ExaslurmError, RegistryError
from exaslurm.registry.ask import Dialogue, NoAnswer
from exaslurm.registry.live import (
    NOTHING_TOLD,
    Replicas,
    Row,
    Told,
    from_record,
    from_state,
    load_of,
)
from exaslurm.registry.read import RecordReader
from exaslurm.registry.replica import Listener, LoadListener, Replica
from exaslurm.rundir import RunDir
from exaslurm.util.clock import MACHINE, Clock
from exaslurm.util.iothread import IoThread

log = logging.getLogger(__name__)

RECORDS_EVERY_S = 2.0
STATE_EVERY_S = 1.0
SILENT_AFTER_S = 5.0
LOADS_AGAIN_S = 5.0
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
        self.told: Told = NOTHING_TOLD
        self._rows_shown: list[Row | None] = []
        self._loads_due_s = 0.0
        self.answering: dict[str, bool] = {}
        """By probes, while nobody else speaks for the replicas."""

    def take_record(self, record: CellRecord, now_s: float) -> None:
        """A record was read: a new number renews the lease; its content counts while the
        controller is silent, or when it is another job's."""
        before, self.record = self.record, record
        if (record.generation, record.job_id) != (before.generation, before.job_id):
            self.replicas, self.renewed_s = from_record(record), now_s
            self.heard_s, self.told = None, NOTHING_TOLD
            self.confirmed = True
            self.answering.clear()
            return
        if record.seq != before.seq:
            self.renewed_s = now_s
            self.confirmed = True
            self.answering.clear()
        if record.replicas != before.replicas:
            self.told = NOTHING_TOLD  # weights are the record's: ask for the whole state again
            if not self.is_heard(now_s):
                self.replicas = from_record(record)

    def take_state(self, raw: bytes, now_s: float) -> bool:
        """The controller answered; true if that changes anything. RegistryError as of
        ``from_state``."""
        told = from_state(raw, self.record, self.replicas, self.told)
        if told.ids != self.told.ids:
            self._loads_due_s = now_s
        self.told, self.heard_s = told, now_s
        changed = bool(self.answering) or not self.confirmed
        if told.replicas is not None:
            changed = changed or told.replicas != self.replicas
            self.replicas = told.replicas
        self.confirmed = True
        self.answering.clear()
        return changed

    def fresh_loads(self, now_s: float) -> dict[str, EngineLoad]:
        """Figures that are new since this was called last; all of them every few seconds."""
        ids, rows, before = self.told.ids, self.told.rows, self._rows_shown
        if now_s >= self._loads_due_s:
            self._loads_due_s = now_s + LOADS_AGAIN_S
            before = [None] * len(rows)
        self._rows_shown = rows
        return {
            ident: load_of(row)
            for ident, row, old in zip(ids, rows, before, strict=True)
            if row is not None and row != old
        }

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
        clock: Clock = MACHINE,
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
        """``listener`` is called each time a controller tells other figures than before, and with
        all of a cell every few seconds as long as its controller answers."""
        self._load_listeners.append(listener)

    def recheck(self, replica: str) -> None:
        """Nothing to do: the cell watches its replicas and is asked every second."""

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """All replicas of all cells, as last known."""
        return self._shown

    def describe(self) -> Mapping[str, Any]:
        now_s = self._clock.monotonic()
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
        prober = asyncio.create_task(self._probe_orphans())
        try:
            while True:
                try:
                    await self._read_records()
                except Exception:  # this loop must not end: new cells would never be seen
                    log.exception("reading the registry")
                await asyncio.sleep(self._clock.machine_s(RECORDS_EVERY_S))
        finally:
            tasks = [prober, *self._askers.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read_records(self) -> None:
        try:
            records = await self._files.run(self._reader.read, timeout_s=_FILE_TIMEOUT_S)
        except ExaslurmError as error:
            self._note(f"registry not readable, going on with what is known: {error}")
            return
        self._note(None)
        now_s = self._clock.monotonic()
        for name in [name for name in self._cells if name not in records]:
            log.info("cell %s has left the registry", name)
            del self._cells[name]
            self._askers.pop(name).cancel()
        for name, record in records.items():
            cell = self._cells.get(name)
            if cell is None:
                log.info("cell %s: %d replicas on record", name, len(record.replicas))
                self._cells[name] = cell = Cell(record, now_s)
                self._askers[name] = asyncio.create_task(self._ask(cell))
            else:
                cell.take_record(record, now_s)
        self._publish()

    async def _ask(self, cell: Cell) -> None:
        """Ask one cell's controller again and again."""
        silent = False
        while True:
            try:
                asked_with = cell.told.tag
                path = f"/v1/state?router={asked_with}"
                raw = await self._get(cell.record.state_url, path)
                if cell.told.tag != asked_with:
                    continue  # a new record has come meanwhile: figures alone would not do
                now_s = self._clock.monotonic()
                if cell.take_state(raw, now_s):
                    self._publish()
                if self._load_listeners and (loads := cell.fresh_loads(now_s)):
                    for listener in self._load_listeners:
                        listener(loads)
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
            await asyncio.sleep(self._clock.machine_s(STATE_EVERY_S))

    async def _probe_orphans(self) -> None:
        """Ask the replicas of cells that nobody speaks for whether they live."""
        slots = asyncio.Semaphore(_PROBES_AT_ONCE)

        async def probe(cell: Cell, replica: Replica) -> None:
            async with slots:
                # Not /health: it needs no key, so anybody's engine on that port would do.
                alive = await self._answers(replica.url, "/v1/models")
            if cell.is_orphaned(self._clock.monotonic()):  # else it was spoken for meanwhile
                cell.answering[replica.id] = alive

        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._probe_now.wait(), self._clock.machine_s(PROBE_EVERY_S))
            self._probe_now.clear()
            now_s = self._clock.monotonic()
            orphans = [cell for cell in self._cells.values() if cell.is_orphaned(now_s)]
            try:
                await asyncio.gather(
                    *(probe(cell, item) for cell in orphans for item in cell.replicas.values())
                )
                if orphans:
                    self._publish()
            except Exception:  # this loop must not end: nobody else speaks for the replicas
                log.exception("asking replicas themselves")

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

    async def _get(self, base_url: str, path: str) -> bytes:
        try:
            dialogue = Dialogue(base_url, self._key, _HTTP_TIMEOUT_S)
        except ValueError:
            raise RegistryError(f"{base_url!r} is not an address like http://HOST:PORT") from None
        try:
            status, raw = await dialogue.get(path)
        except NoAnswer as error:
            raise RegistryError(f"no answer from {base_url}: {error}") from None
        finally:
            dialogue.close()
        if status != 200:
            raise RegistryError(f"{base_url} answered {status}")
        return raw

    async def _answers(self, base_url: str, path: str) -> bool:
        with contextlib.suppress(RegistryError):
            await self._get(base_url, path)
            return True
        return False
