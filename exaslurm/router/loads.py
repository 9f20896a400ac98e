"""How many requests each router process of this host has at each replica, in shared memory.

A file that all of them map is a table of 32-bit counts: a row per replica, a column per process.
Each process writes its own column only, so that nothing is locked or lost on the hot path; the sum
of the others is read some times a second. Only the rare changes of the table's heads (which process
has which column, which replica which row) are made under a lock.

A process that is killed cannot clear its column: columns carry pid and start time, and those of
processes that are gone are neither counted nor kept.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from exaslurm.errors import StateError
from exaslurm.util.files import state_error
from exaslurm.util.hostdir import host_dir, host_name_of
from exaslurm.util.process import is_alive, start_ticks
from exaslurm.util.sharedfile import is_at, lock_until, open_private, row_hash

ROWS = 16384
COLUMNS = 192
"""Three for each worker process that a router may have: one is replaced while the one before still
finishes what it began, and so may the next one be."""
NO_SLOT = ROWS - 1
"""A row that stands for no replica: writing to it does no harm, and nobody reads it."""

_MAGIC = b"exaload2"
_COUNT_BYTES = 4
_COLUMN_BYTES = ROWS * _COUNT_BYTES
# The file: a page with magic and owners (pid, start ticks), hashes of the replicas' ids by row, and
# per column which rows it uses (a byte each) and its counts. Pages that nobody uses take no memory.
# Those that somebody uses are had from the start: where the file system is full by the time that a
# page is touched for the first time, the process would be killed (SIGBUS).
_OWNERS_AT = 64
_IDS_AT = mmap.PAGESIZE
_USED_AT = _IDS_AT + ROWS * 8
_COUNTS_AT = _USED_AT + COLUMNS * ROWS
_FILE_BYTES = _COUNTS_AT + COLUMNS * _COLUMN_BYTES

_LOCK_TIMEOUT_S = 2.0
# Within an event loop, for who tries again later. The lock is held for milliseconds.
_SHORT_LOCK_TIMEOUT_S = 0.02
_LOOK_EVERY_S = 1.0


def loads_path(*name: str) -> Path:
    """Where the routers of one name (a run directory, a file of engines) share their counts on
    this host. StateError if there is no private directory."""
    return host_dir() / f"loads-{host_name_of(*name)}"


class Loads:
    """One process's part of the table. Use ``open``; not for several threads.

    ``slots`` has the row of each replica id, ``mine`` the own counts by row: ``mine[slot] = n``
    with ``n >= 0``. Both stay the same objects for the life of this one.
    """

    def __init__(self, path: Path, fd: int, memory: mmap.mmap) -> None:
        self.path = path
        self.slots: dict[str, int] = {}
        self._fd = fd
        self._memory = memory
        view = memoryview(memory)
        self._view = view
        self._owners = view[_OWNERS_AT : _OWNERS_AT + COLUMNS * 16].cast("q")
        self._ids = view[_IDS_AT:_USED_AT].cast("Q")
        self._counts = view[_COUNTS_AT:].cast("i")
        self._column = -1
        self._others: list[int] = []
        self._looked_s = float("-inf")
        self._height = 0

    @classmethod
    def open(cls, path: Path, ids: Iterable[str] = ()) -> Loads:
        """Take a column of the table in ``path``, and rows for these replicas.

        StateError if the file cannot be used, is not private, or all columns are taken.
        """
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            fd = _open(path)
            try:
                memory = mmap.mmap(fd, _FILE_BYTES)
                loads = cls(path, fd, memory)
                with loads._locked(deadline):
                    # The last one to leave removes the file, perhaps between our two steps.
                    if is_at(fd, path):
                        loads._take_column()
                        loads._take_rows(ids)
                        return loads
            except OSError as error:
                os.close(fd)
                raise state_error("share loads in", path, error) from error
            except BaseException:
                os.close(fd)
                raise
            loads._release()

    @property
    def mine(self) -> memoryview:
        """The own counts, by row."""
        return self._mine

    def retain(self, ids: Iterable[str]) -> dict[str, int]:
        """Have rows for exactly these replicas; returns ``slots``. A replica that was there keeps
        its row. One for which no row is left gets ``NO_SLOT``: its load is not shared.

        Whoever still writes to the row of one that is gone must turn to ``NO_SLOT`` at once: the
        row may become another's. Takes milliseconds. StateError if the lock is not to be had.
        """
        with self._locked(time.monotonic() + _SHORT_LOCK_TIMEOUT_S):
            self._take_rows(ids)
        return self.slots

    def others(self) -> memoryview:
        """The sums of all other living processes' counts, by row (as far as ``slots`` go).

        A column is added as one long number with a digit of 32 bits per row: no digit overflows,
        and 3,072 rows of 8 processes take microseconds.
        """
        self._look_now_and_then()
        size = self._height * _COUNT_BYTES
        total = 0
        for column in self._others:
            start = _COUNTS_AT + column * _COLUMN_BYTES
            total += int.from_bytes(self._view[start : start + size], sys.byteorder)
        total &= (1 << size * 8) - 1
        return memoryview(total.to_bytes(size, sys.byteorder)).cast("i")

    def others_at(self, slot: int) -> int:
        """The sum of all other living processes' counts in one row."""
        self._look_now_and_then()
        total = 0
        for column in self._others:
            total += self._counts[column * ROWS + slot]
        return total

    def close(self) -> None:
        """Give the column back, and remove the file if nobody else uses it."""
        with contextlib.suppress(StateError), self._locked(time.monotonic() + _LOCK_TIMEOUT_S):
            self._clear(self._column)
            self._bury()
            if not any(self._owners[::2]) and is_at(self._fd, self.path):
                self.path.unlink()
        self._release()

    def _release(self) -> None:
        mine = getattr(self, "_mine", None)
        for view in (self._owners, self._ids, self._counts, mine, self._view):
            if view is not None:
                view.release()
        self._memory.close()
        os.close(self._fd)

    def _take_column(self) -> None:
        pid = os.getpid()
        ticks = start_ticks(pid)
        assert ticks is not None
        self._bury()
        for column in range(COLUMNS):
            if not self._owners[2 * column]:
                break
        else:
            raise StateError(f"{self.path}: {COLUMNS} router processes share their loads already")
        os.posix_fallocate(self._fd, _USED_AT + column * ROWS, ROWS)
        os.posix_fallocate(self._fd, _COUNTS_AT + column * _COLUMN_BYTES, _COLUMN_BYTES)
        self._clear(column)
        self._owners[2 * column + 1] = ticks
        self._owners[2 * column] = pid
        self._column = column
        start = _COUNTS_AT + column * _COLUMN_BYTES
        self._mine = self._view[start : start + _COLUMN_BYTES].cast("i")

    def _take_rows(self, ids: Iterable[str]) -> None:
        """Rows for these ids, those of others that have the same ones first (with the lock)."""
        wanted = {ident: row_hash(ident) for ident in ids}
        used = self._used(self._column)
        for ident in self.slots.keys() - wanted.keys():
            slot = self.slots.pop(ident)
            if slot != NO_SLOT:
                used[slot] = 0
                self._mine[slot] = 0
        in_use = 0
        for column in range(COLUMNS):
            if self._owners[2 * column]:
                in_use |= int.from_bytes(self._used(column), sys.byteorder)
        taken = in_use.to_bytes(ROWS, sys.byteorder)
        rows = {self._ids[row]: row for row in range(NO_SLOT) if taken[row]}
        free = (row for row in range(NO_SLOT) if not taken[row])
        for ident, digest in wanted.items():
            if ident in self.slots and self.slots[ident] != NO_SLOT:
                continue
            row = rows.get(digest)
            if row is None:
                row = next(free, NO_SLOT)
            if row != NO_SLOT:
                self._ids[row] = digest
                self._mine[row] = 0
                used[row] = 1
            self.slots[ident] = row
        self._height = 1 + max((row for row in self.slots.values() if row != NO_SLOT), default=-1)

    def _look_now_and_then(self) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_s >= _LOOK_EVERY_S:
            self._looked_s = now_s
            self._look()

    def _look(self) -> None:
        """See which other columns are in use, and clear those of the dead."""
        self._others, dead = [], False
        for column in range(COLUMNS):
            pid, ticks = self._owners[2 * column], self._owners[2 * column + 1]
            if column == self._column or not pid:
                continue
            if is_alive(pid, ticks):
                self._others.append(column)
            else:
                dead = True
        if dead:  # if somebody else has the lock now, the next look will do
            with contextlib.suppress(StateError), self._locked(0.0):
                self._bury()

    def _bury(self) -> None:
        """Clear the columns of processes that are gone (with the lock)."""
        for column in range(COLUMNS):
            pid, ticks = self._owners[2 * column], self._owners[2 * column + 1]
            if pid and not is_alive(pid, ticks):
                self._clear(column)

    def _clear(self, column: int) -> None:
        start = _COUNTS_AT + column * _COLUMN_BYTES
        self._view[start : start + _COLUMN_BYTES] = bytes(_COLUMN_BYTES)
        self._used(column)[:] = bytes(ROWS)
        self._owners[2 * column] = 0

    def _used(self, column: int) -> memoryview:
        start = _USED_AT + column * ROWS
        return self._view[start : start + ROWS]

    @contextlib.contextmanager
    def _locked(self, deadline: float) -> Iterator[None]:
        lock_until(self._fd, self.path, fcntl.LOCK_EX, deadline)
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)


def remove_if_abandoned(path: Path) -> bool:
    """Remove a table whose processes were all killed; whether it was."""
    with contextlib.suppress(OSError, StateError):
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            owners = memoryview(os.pread(fd, COLUMNS * 16, _OWNERS_AT)).cast("q")
            pairs = zip(owners[::2], owners[1::2], strict=True)
            if not any(pid and is_alive(pid, ticks) for pid, ticks in pairs):
                path.unlink()
                return True
        finally:
            os.close(fd)
    return False


def _open(path: Path) -> int:
    """The file, made if need be; its owner's alone."""
    fd = open_private(path)
    try:
        size = os.fstat(fd).st_size
        if size == 0:
            # Several may do this at once: all of them write the same.
            os.ftruncate(fd, _FILE_BYTES)
            os.pwrite(fd, _MAGIC, 0)
        elif size != _FILE_BYTES:
            raise StateError(f"{path} is of another version", remedy=f"remove {path}")
        if os.pread(fd, len(_MAGIC), 0) not in (_MAGIC, bytes(len(_MAGIC))):
            raise StateError(f"{path} is of another version", remedy=f"remove {path}")
        os.posix_fallocate(fd, 0, _USED_AT)
    except OSError as error:
        os.close(fd)
        raise state_error("share loads in", path, error) from error
    except BaseException:
        os.close(fd)
        raise
    return fd
