"""Logs of engines: written on the node, copied to the shared file system.

A program that writes its log to a file system that hangs hangs with it, and an engine writes a line
a second. So engines write to the node's own directory, where nothing is lost when this agent dies,
and what they wrote is copied from there, a moment later, by the thread that may hang.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
from pathlib import Path

from exaslurm.errors import ExaslurmError, StateError
from exaslurm.util.files import PRIVATE_FILE, make_private_dir, state_error
from exaslurm.util.iothread import IoThread

log = logging.getLogger(__name__)

_EVERY_S = 1.0
_FILE_S = 10.0
_PIECE_BYTES = 1 << 20
# Of what is copied so much stays on the node, to tell why an engine ended; the room of the rest is
# given back.
_KEPT_BYTES = 1 << 20
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # fallocate(2)
# A file that did not grow for so many looks is closed.
_IDLE_LOOKS = 60


class EngineLogs:
    """The logs of a node's engines: ``local`` is where one is written, ``shared`` where people find
    it (``<shared>/<replica>.log``)."""

    def __init__(self, node_dir: Path, shared: Path, files: IoThread) -> None:
        self._directory = node_dir / "logs"
        self._shared = shared
        self._files = files
        self._open: dict[str, _Copy] = {}
        self._trouble: str | None = None
        make_private_dir(self._directory)

    def local(self, replica: str) -> Path:
        """The file that the engine writes."""
        return self._directory / f"{replica}.log"

    async def run(self) -> None:
        """Copy, until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            await self.copy()

    async def copy(self, *, timeout_s: float = _FILE_S) -> None:
        """Copy what there is now. What goes wrong is logged, and tried again next time."""
        trouble = None
        try:
            await self._files.run(self._copy_all, timeout_s=timeout_s)
        except (ExaslurmError, OSError) as error:
            trouble = str(error)
        if trouble is not None and self._trouble is None:
            log.warning("logs of engines stay on the node for now: %s", trouble)
        self._trouble = trouble

    def _copy_all(self) -> None:
        problem: StateError | None = None
        for name in sorted(os.listdir(self._directory)):
            if not name.endswith(".log"):
                continue
            copy = self._open.setdefault(name, _Copy(self._directory / name, self._shared / name))
            try:
                copy.go_on()
            except OSError as error:
                copy.close()  # it may be another file by the next time
                problem = state_error("write", self._shared / name, error)
        if problem is not None:
            raise problem


class _Copy:
    """One log on its way. How far it is is remembered beside it, for the next agent."""

    def __init__(self, source: Path, target: Path) -> None:
        self._source = source
        self._target = target
        self._mark = source.with_suffix(".copied")
        self._at = self._remembered()
        self._freed = 0
        self._to: int | None = None
        self._idle = 0

    def go_on(self) -> None:
        """Copy what was added. OSError."""
        size = self._source.stat().st_size
        if size <= self._at:
            self._idle += 1
            if self._idle > _IDLE_LOOKS:
                self.close()
            return
        self._idle = 0
        with self._source.open("rb") as file:
            file.seek(self._at)
            while piece := file.read(_PIECE_BYTES):
                self._write(piece)
                self._at += len(piece)
                self._mark.write_text(str(self._at), encoding="ascii")
        self._free()

    def close(self) -> None:
        if self._to is not None:
            with contextlib.suppress(OSError):
                os.close(self._to)
        self._to = None

    def _write(self, piece: bytes) -> None:
        if self._to is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._to = os.open(self._target, flags, PRIVATE_FILE)
        while piece:
            piece = piece[os.write(self._to, piece) :]

    def _remembered(self) -> int:
        try:
            return int(self._mark.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return 0

    def _free(self) -> None:
        """Give back the room of what is copied, as far as the file system knows how to: the program
        that writes keeps its file."""
        end = (self._at - _KEPT_BYTES) // 4096 * 4096
        if end <= self._freed:
            return
        with contextlib.suppress(OSError, AttributeError):
            fallocate = ctypes.CDLL(None).fallocate
            offset = ctypes.c_long(self._freed), ctypes.c_long(end - self._freed)
            fd = os.open(self._source, os.O_WRONLY | os.O_CLOEXEC)
            try:
                fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, *offset)
            finally:
                os.close(fd)
        self._freed = end
