"""Figures of a router that is several processes, one after the other or side by side.

Each writes what it has counted to a file of its own in a private directory in memory, once a
second and at its end. Whoever is asked adds up the files of the others. Counts of processes that
have ended stay in the sum, or Prometheus would see them fall. A process that is killed takes what
it counted in its last second with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from exaslurm.errors import StateError
from exaslurm.util.files import PRIVATE_DIR, PRIVATE_FILE, state_error
from exaslurm.util.hostdir import host_dir
from exaslurm.util.process import is_alive, start_ticks

log = logging.getLogger(__name__)

_DIRECTORY = "figures-"
_ENDED = "ended"


def own_directory() -> Path | None:
    """The directory of the router whose main process this is; None if none can be had. It stays
    the same when the process executes itself anew."""
    pid = os.getpid()
    try:
        own = host_dir() / f"{_DIRECTORY}{pid}-{start_ticks(pid)}"
        own.mkdir(mode=PRIVATE_DIR, exist_ok=True)
    except (OSError, StateError) as error:
        log.warning("each process has figures of its own only: %s", error)
        return None
    return own


def remove_directory(path: Path | None) -> None:
    """At the end of the main process."""
    if path is not None:
        shutil.rmtree(path, ignore_errors=True)


class Figures:
    """One process's part of it. All calls read or write files, none waits for another process
    for longer than that takes."""

    def __init__(self, directory: Path) -> None:
        pid = os.getpid()
        self._directory = directory
        # With a word that another life of the same process does not have.
        self._own = directory / f"{pid}-{start_ticks(pid)}-{secrets.token_hex(4)}"
        self._written: bytes | None = None
        self._taken_s = float("-inf")
        self._lock = threading.Lock()

    def write(self, snapshot: bytes, *, taken_s: float | None = None, last: bool = False) -> None:
        """Leave the own figures, as they were at ``taken_s`` (monotonic; None: now), for the
        others. Older ones than those that are there are left out. StateError."""
        with self._lock:
            now_s = time.monotonic() if taken_s is None else taken_s
            if now_s >= self._taken_s:
                self._taken_s = now_s
                self._write(snapshot, last=last)

    def _write(self, snapshot: bytes, *, last: bool) -> None:
        if snapshot != self._written:
            fresh = self._own.with_suffix(".new")
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            try:
                fd = os.open(fresh, flags, PRIVATE_FILE)
                with os.fdopen(fd, "wb") as file:
                    file.write(snapshot)
                fresh.replace(self._own)
            except OSError as error:
                raise state_error("write", self._own, error) from error
            self._written = snapshot
        if last:
            with contextlib.suppress(OSError):
                self._own.replace(self._own.with_suffix(f".{_ENDED}"))

    def read(self) -> tuple[list[bytes], list[bytes]]:
        """What the other processes wrote: those that live, and those that have ended."""
        live: list[bytes] = []
        ended: list[bytes] = []
        with _locked(self._directory, fcntl.LOCK_SH):
            for path in _files(self._directory):
                if path == self._own:
                    continue
                with contextlib.suppress(FileNotFoundError):  # renamed: it has just ended
                    raw = path.read_bytes()
                    (ended if has_ended(path) else live).append(raw)
        return live, ended


def fold(directory: Path) -> None:
    """Put the figures of all processes that have ended into one file, so that there are not more
    and more of them. For the main process."""
    from exaslurm.router.exposition import dump, load, merge

    with _locked(directory, fcntl.LOCK_EX):
        gone = [path for path in _files(directory) if has_ended(path)]
        if len(gone) < 2:
            return
        families = []
        for path in gone:
            with contextlib.suppress(ValueError):  # of another version: not to be added up
                families.append(load(path.read_bytes()))
        total = directory / f"all.{_ENDED}"
        fresh = directory / "all.new"
        fresh.write_bytes(dump(merge([], families)))
        fresh.replace(total)
        for path in gone:
            if path != total:
                path.unlink(missing_ok=True)


def has_ended(path: Path) -> bool:
    """Whether the process that wrote a file is gone."""
    return path.suffix == f".{_ENDED}" or not _lives(path.name)


def _lives(name: str) -> bool:
    pid, ticks = (*name.split("-"), "", "")[:2]
    return pid.isdigit() and ticks.isdigit() and is_alive(int(pid), int(ticks))


def _files(directory: Path) -> list[Path]:
    try:
        return [path for path in directory.iterdir() if path.suffix != ".new"]
    except FileNotFoundError:
        return []  # the main process has ended


@contextlib.contextmanager
def _locked(directory: Path, mode: int) -> Iterator[None]:
    """Files are folded between two readings, not during one."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StateError(f"{directory}: {error.strerror}") from error
    try:
        fcntl.flock(fd, mode)
        yield
    finally:
        os.close(fd)
