"""What keys have used of their limits, in memory that all router processes of a host share.

So a key's limits hold for all of these processes together, and outlive each of them. Its buckets
(see ``rate``) are cells of a file that all map, written without a lock: should two write in the
same microsecond, one request goes uncounted. Its requests at hand are counted per process (see
``loads``), so that what a killed process had does not count for ever.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import time
from array import array
from collections.abc import Iterable, MutableSequence
from pathlib import Path
from typing import cast

from exaslurm.errors import StateError
from exaslurm.router.loads import NO_SLOT, ROWS, Loads, loads_path
from exaslurm.util.files import state_error
from exaslurm.util.hostdir import host_dir, host_name_of
from exaslurm.util.sharedfile import is_at, lock_until, open_private, row_hash

log = logging.getLogger(__name__)

Cells = MutableSequence[float]

# A row, at the place that the key has among the loads: the hash of its name, and when its
# requests and its tokens will be full again.
_ROW_CELLS = 3
_FILE_BYTES = ROWS * _ROW_CELLS * 8
_LOCK_TIMEOUT_S = 2.0


def own_cells() -> tuple[Cells, int]:
    """Cells for the buckets of a key that nobody else sees."""
    return array("d", (0.0, 0.0)), 0


class SharedQuotas:
    """One process's hand in what is shared. Use ``open``; not for several threads."""

    def __init__(self, path: Path, fd: int, at_hand: Loads) -> None:
        self._path = path
        self._fd = fd
        self._at_hand = at_hand
        self._closed = False
        self._told: set[str] = set()
        # Buckets hold the cells for as long as they like, even beyond ``close``.
        memory = memoryview(mmap.mmap(fd, _FILE_BYTES))
        self._hashes = memory.cast("Q")
        self._cells = memory.cast("d")

    @classmethod
    def open(cls, *name: str) -> SharedQuotas:
        """What the routers of one name (a run directory, a file of engines) share on this host.
        StateError if it cannot be had."""
        at_hand = Loads.open(loads_path(*name, "keys"))
        try:
            path = quotas_path(*name)
            fd = _open(path)
            try:
                return cls(path, fd, at_hand)
            except BaseException:
                os.close(fd)
                raise
        except BaseException:
            at_hand.close()
            raise

    def join(self, key: str) -> tuple[Cells, int] | None:
        """Where the buckets of a key are: requests at that index, tokens at the next. The first
        time takes milliseconds. None: that cannot be had now, perhaps later."""
        slots = self._at_hand.slots
        if slots.get(key, NO_SLOT) == NO_SLOT and not self._closed:
            try:
                slots = self._at_hand.retain({*slots, key})
            except StateError as error:
                self._tell(key, str(error))
                return None
        slot = slots.get(key, NO_SLOT)
        if slot == NO_SLOT:
            self._tell(key, "no room")
            return None
        self._told.discard(key)
        at = slot * _ROW_CELLS
        digest = _hash(key)
        if self._hashes[at] != digest:  # another's who is there no more, or nobody's
            self._hashes[at] = digest
            self._cells[at + 1] = self._cells[at + 2] = 0.0
        return cast("Cells", self._cells), at + 1

    def _tell(self, key: str, why: str) -> None:
        if key not in self._told:
            self._told.add(key)
            log.warning("the limits of %r are counted by each process alone now: %s", key, why)

    def leave(self, keys: Iterable[str]) -> None:
        """These keys have used nothing that counts any more, and nothing of them is at hand here:
        others may have their places. Takes milliseconds."""
        slots = self._at_hand.slots
        self._told.difference_update(keys)
        left = slots.keys() & set(keys)
        if left and not self._closed:
            with contextlib.suppress(StateError):  # then the next time
                self._at_hand.retain(slots.keys() - left)

    def publish(self, key: str, at_hand: int) -> None:
        """So many requests of a key are at hand in this process."""
        if not self._closed:
            self._at_hand.mine[self._at_hand.slots.get(key, NO_SLOT)] = at_hand

    def elsewhere(self, key: str) -> int:
        """How many requests of a key are at hand in the other processes."""
        slot = self._at_hand.slots.get(key, NO_SLOT)
        return 0 if slot == NO_SLOT or self._closed else self._at_hand.others_at(slot)

    def close(self) -> None:
        """Take back what was published, and remove the files if nobody else uses them."""
        self._closed = True
        self._at_hand.close()
        with contextlib.suppress(OSError):
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody else holds it: the last
            if is_at(self._fd, self._path):
                self._path.unlink()
        os.close(self._fd)


def quotas_path(*name: str) -> Path:
    """The file; another one after each boot, which sets the clock of its times back."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    return host_dir() / f"quotas-{host_name_of(*name, boot)}"


def _open(path: Path) -> int:
    """The file, made if need be, its owner's alone, with a shared lock on it for its life."""
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        fd = open_private(path)
        try:
            lock_until(fd, path, fcntl.LOCK_SH, deadline)
            if is_at(fd, path):
                os.ftruncate(fd, _FILE_BYTES)
                os.posix_fallocate(fd, 0, _FILE_BYTES)  # for the reason told in loads.py
                return fd
        except OSError as error:
            os.close(fd)
            raise state_error("share limits in", path, error) from error
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # the last one to leave was just removing it


def _hash(key: str) -> int:
    return row_hash(key) or 1  # 0 is nobody's
