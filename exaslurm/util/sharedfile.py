"""Files in the private directory of a host that several processes map at once."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import time
from pathlib import Path

from exaslurm.errors import StateError
from exaslurm.util.files import PRIVATE_FILE, state_error

_PAUSE_S = 0.002


def open_private(path: Path) -> int:
    """A descriptor of the file, made (empty) if it is not there. StateError if it cannot be
    opened, or is not the user's alone."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(path, flags, PRIVATE_FILE)
    except OSError as error:
        raise state_error("open", path, error) from error
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        os.close(fd)
        raise StateError(f"{path} is not this user's alone", remedy=f"remove {path}")
    return fd


def lock_until(fd: int, path: Path, kind: int, deadline: float) -> None:
    """Lock an open file (``fcntl.LOCK_SH`` or ``LOCK_EX``); StateError if another process keeps
    it until ``deadline`` (monotonic seconds)."""
    while not _try_lock(fd, path, kind):
        if time.monotonic() >= deadline:
            raise StateError(f"{path} is locked by another process")
        time.sleep(_PAUSE_S)


def _try_lock(fd: int, path: Path, kind: int) -> bool:
    """The same without waiting; false if another process has it."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno != errno.EWOULDBLOCK:
            raise state_error("lock", path, error) from error
        return False
    return True


def is_at(fd: int, path: Path) -> bool:
    """Whether the open file is the one at ``path``: whoever left last may have removed it."""
    try:
        there = path.stat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):  # on NFS: another host removed it
            return False
        raise
    try:
        return os.path.samestat(there, os.fstat(fd))
    except OSError as error:
        # Its file system went and came back: what was opened before is dead.
        if error.errno in (errno.ESTALE, errno.ENOTCONN):
            return False
        raise


def row_hash(name: str) -> int:
    """64 bits that stand for a name in such a file, the same in every process."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
