"""Where the processes of one router put their figures, so that any of them can answer for all.

One small file each, in a directory in memory. What a process leaves when it ends is added to the
sum of those that ended before, which lasts as long as one of them runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from exaslurm.router.exposition import Family, dump, load, merge
from exaslurm.util.files import PRIVATE_FILE, make_private_dir, state_error
from exaslurm.util.hostdir import host_dir, host_name_of
from exaslurm.util.process import is_alive, start_ticks

_ENDED = "ended.json"
_LOCK = ".lock"
_LOCK_TIMEOUT_S = 0.2
_LOCK_PAUSE_S = 0.005


class Board:
    """One process's place on it. Files are small and in memory: calls take well below a
    millisecond, and wait no longer than 0.2 s for another process."""

    def __init__(self, directory: Path) -> None:
        """Take a place in a private directory. StateError if it cannot be used."""
        self._directory = directory
        pid = os.getpid()
        self._own = directory / f"{pid}-{start_ticks(pid)}.json"
        make_private_dir(directory)
        try:
            with self._locked(fcntl.LOCK_EX) as locked:
                if locked:
                    self._clear_up()
        except OSError as error:
            raise state_error("use", directory, error) from error

    @classmethod
    def open(cls, *name: str) -> Board:
        """The board of the routers of one name (a run directory, a file of engines) on this
        host."""
        return cls(host_dir() / f"figures-{host_name_of(*name)}")

    def post(self, raw: bytes) -> None:
        """Put up what ``Metrics.snapshot`` gave, in place of the last one. StateError if there is
        no room."""
        try:
            self._replace(self._own, raw)
        except OSError as error:
            raise state_error("write", self._own, error) from error

    def total(self) -> list[Family]:
        """What all processes have put up, as figures of one. StateError if it cannot be read."""
        try:
            with self._locked(fcntl.LOCK_SH):
                live, ended = self._read()
        except OSError as error:
            raise state_error("read", self._directory, error) from error
        return merge(live.values(), ended.values())

    def _clear_up(self) -> None:
        """Put the figures of ended processes together; forget them if nobody is left who may have
        been asked for them."""
        live, ended = self._read()
        if ended:
            total = self._directory / _ENDED
            if live:
                self._replace(total, dump(merge([], ended.values())))
            for path in ended:
                if path != total or not live:
                    path.unlink(missing_ok=True)
        for path in self._directory.glob("*.new"):
            if not _lives(path):
                path.unlink(missing_ok=True)

    def _read(self) -> tuple[dict[Path, list[Family]], dict[Path, list[Family]]]:
        live: dict[Path, list[Family]] = {}
        ended: dict[Path, list[Family]] = {}
        for path in sorted(self._directory.glob("*.json")):
            with contextlib.suppress(ValueError):  # of another version, during a hand-over
                (live if _lives(path) else ended)[path] = load(path.read_bytes())
        return live, ended

    @staticmethod
    def _replace(path: Path, raw: bytes) -> None:
        temporary = path.with_suffix(".new")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE)
        with os.fdopen(fd, "wb") as file:
            file.write(raw)
        temporary.replace(path)

    @contextlib.contextmanager
    def _locked(self, how: int) -> Iterator[bool]:
        """Whether the lock was had: a process that was stopped while it holds it stops no other."""
        fd = os.open(self._directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            deadline = time.monotonic() + _LOCK_TIMEOUT_S
            while not (locked := _try_lock(fd, how)) and time.monotonic() < deadline:
                time.sleep(_LOCK_PAUSE_S)
            yield locked
        finally:
            os.close(fd)


def _try_lock(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lives(path: Path) -> bool:
    """Whether the process of a file runs; not so for the sum of those that ended."""
    pid, _, ticks = path.stem.partition("-")
    return pid.isdigit() and ticks.isdigit() and is_alive(int(pid), int(ticks))
