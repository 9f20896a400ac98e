"""A lock between processes that change the same small file."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from exaslurm.errors import StateError
from exaslurm.util.files import PRIVATE_FILE, state_error

log = logging.getLogger(__name__)

_UNSUPPORTED = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}


@contextlib.contextmanager
def file_lock(path: Path, *, timeout_s: float = 10.0) -> Iterator[None]:
    """Hold the lock file ``path``; StateError if another process keeps it for ``timeout_s``.

    Some parallel file systems are mounted without locks. There this goes on without one: the
    files it guards are replaced by rename, so they stay whole, and only two changes within the
    same milliseconds could lose one of the two.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    except OSError as error:
        raise state_error("open lock", path, error) from error
    try:
        deadline = time.monotonic() + timeout_s
        while not _try_lock(fd, path):
            if time.monotonic() >= deadline:
                raise StateError(
                    f"{path} is held by another process for more than {timeout_s:g} s",
                    remedy="wait for the other exaslurm command, or end it",
                )
            time.sleep(0.02)
        yield
    finally:
        os.close(fd)


def _try_lock(fd: int, path: Path) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            log.debug("no locks on the file system of %s", path)
            return True
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise state_error("lock", path, error) from error
    return True
