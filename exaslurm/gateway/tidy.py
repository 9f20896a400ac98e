"""What routers that were killed have left in the user's directory on this host."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from pathlib import Path

from exaslurm.errors import StateError
from exaslurm.router.loads import remove_if_abandoned
from exaslurm.util.hostdir import host_dir
from exaslurm.util.process import is_alive

# What keys have used of their minute is of no use to anybody after that.
_QUOTAS_KEPT_S = 3600.0


def tidy() -> None:
    """Remove it: files that nobody uses, sockets and directories named after processes that are
    gone (they end in pid and start ticks)."""
    with contextlib.suppress(OSError, StateError):
        for path in host_dir().iterdir():
            if path.name.startswith("loads-"):
                remove_if_abandoned(path)
            elif path.name.startswith("quotas-"):
                _remove_unlocked(path)
            elif path.name.startswith(("router-", "figures-")) and not belongs_to_living(path.name):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)


def belongs_to_living(name: str) -> bool:
    """Whether the process whose pid and start ticks end a name lives."""
    pid, ticks = ("", "", *name.split("-"))[-2:]
    return pid.isdigit() and ticks.isdigit() and is_alive(int(pid), int(ticks))


def _remove_unlocked(path: Path) -> None:
    """Remove an old file unless a process holds a lock on it, as its users do for all their
    life."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - os.fstat(fd).st_mtime > _QUOTAS_KEPT_S:
                path.unlink()
        finally:
            os.close(fd)
