"""Reading the records of all cells."""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path
from typing import Any

import orjson

from exaslurm.core.cell import CellRecord
from exaslurm.core.codec import loads
from exaslurm.errors import StateError
from exaslurm.registry.replica import is_text
from exaslurm.rundir import RunDir
from exaslurm.util.files import read_text, state_error

log = logging.getLogger(__name__)


def read_record(path: Path) -> CellRecord:
    """One record; StateError if the file cannot be read or understood."""
    return _parse(path, read_text(path))


def _parse(path: Path, text: str) -> CellRecord:
    record = loads(CellRecord, text, where=str(path))
    if record.cell != path.stem:
        raise StateError(f"{path} is the record of cell {record.cell!r}")
    for item in record.replicas:
        texts = (item.id, item.model, *item.served_names, item.url, item.node, item.version)
        wrong = next((text for text in texts if not is_text(text)), None)
        if wrong is not None:
            raise StateError(f"{path}: {wrong!r} is no text")
    return record


def read_records(run_dir: RunDir) -> list[CellRecord]:
    """All records that can be read now, by cell; a damaged one is logged and left out."""
    return list(RecordReader(run_dir).read().values())


class RecordReader:
    """Reads the records again and again, and keeps the last good one of a damaged file.

    A cell is gone when its file is; when the directory cannot be read at all, nothing is known,
    and StateError says so.
    """

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._known: dict[str, CellRecord] = {}
        self._bad: dict[str, str] = {}
        self._content: dict[str, Any] = {}

    def read(self) -> dict[str, CellRecord]:
        """Records by cell, in order of the cells' names."""
        directory = self._run_dir.registry
        try:
            with os.scandir(directory) as entries:
                names = sorted(
                    entry.name
                    for entry in entries
                    if entry.name.endswith(".json") and not entry.name.startswith(".")
                )
        except FileNotFoundError as error:
            if not self._run_dir.path.is_dir():  # removed, or its file system is away
                raise state_error("list", directory, error) from error
            names = []
        except OSError as error:
            raise state_error("list", directory, error) from error
        fresh: dict[str, CellRecord] = {}
        for name in names:
            path = directory / name
            record = self._read_or_keep(path)
            if record is not None:
                fresh[path.stem] = record
        self._known = fresh
        for name in self._content.keys() - fresh.keys():
            del self._content[name]
        return dict(fresh)

    def _read_or_keep(self, path: Path) -> CellRecord | None:
        try:
            record = self._read(path)
        except StateError as error:
            reason = str(error)
            if self._bad.get(path.stem) != reason:
                log.warning("registry record not usable, last good one kept: %s", reason)
                self._bad[path.stem] = reason
            return self._known.get(path.stem)
        self._bad.pop(path.stem, None)
        return record

    def _read(self, path: Path) -> CellRecord:
        """As ``read_record``, but a record of which only the number is new costs next to nothing:
        that is most of them, and a router reads all of them every few seconds."""
        text = read_text(path)
        try:
            content = orjson.loads(text)
            seq = content.pop("seq")
        except (ValueError, KeyError, TypeError, AttributeError):
            return _parse(path, text)  # which says what is wrong
        known = self._known.get(path.stem)
        if known is not None and content == self._content.get(path.stem) and type(seq) is int:
            return dataclasses.replace(known, seq=seq)
        record = _parse(path, text)
        self._content[path.stem] = content
        return record
