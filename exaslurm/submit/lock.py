"""One submit or stop of a deployment at a time, also on file systems without locks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from exaslurm.errors import DeploymentError
from exaslurm.rundir import RunDir
from exaslurm.util.files import PRIVATE_FILE, create_once, state_error
from exaslurm.util.process import is_alive, start_ticks

_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}
_HELD = {errno.EWOULDBLOCK, errno.EACCES}
_PAUSE_S = 0.1
# No submit or stop takes this long: an owner file of that age was left by a host that died.
_STALE_S = 3600.0


@contextlib.contextmanager
def deployment_lock(run_dir: RunDir, *, timeout_s: float = 60.0) -> Iterator[None]:
    """Hold the deployment against other submits and stops.

    Where the file system has no locks, or has them on this host only (Lustre with ``localflock``),
    an owner file that only one process can create does the same. Raises DeploymentError after
    ``timeout_s``.
    """
    path = run_dir.path / "submit.lock"
    deadline = time.monotonic() + timeout_s
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    except OSError as error:
        raise state_error("open", path, error) from error
    try:
        while not _flocked(fd, path):
            _pause(deadline, path, None, timeout_s)
        with _owned(run_dir.path / "submit.owner", deadline, timeout_s):
            yield
    finally:
        os.close(fd)


def _flocked(fd: int, path: Path) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            return False
        if error.errno not in _NO_LOCKS:
            raise state_error("lock", path, error) from error
    return True


@contextlib.contextmanager
def _owned(path: Path, deadline: float, timeout_s: float) -> Iterator[None]:
    """Be the one whose name is in the owner file. One that was left by a dead process is taken
    over; what another host's process does cannot be seen from here, only how old the file is."""
    host, pid = socket.gethostname(), os.getpid()
    mine = json.dumps({"host": host, "pid": pid, "start_ticks": start_ticks(pid)})
    while not create_once(path, mine):
        owner = _read_owner(path)
        if owner is not None and _is_dead(owner, path, host):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            continue
        _pause(deadline, path, owner, timeout_s)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def _is_dead(owner: tuple[str, int, int], path: Path, host: str) -> bool:
    if owner[0] == host:
        return not is_alive(owner[1], owner[2])
    try:
        return time.time() - path.stat().st_mtime > _STALE_S
    except OSError:
        return False


def _read_owner(path: Path) -> tuple[str, int, int] | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return str(data["host"]), int(data["pid"]), int(data["start_ticks"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # it has just been removed


def _pause(
    deadline: float, path: Path, owner: tuple[str, int, int] | None, timeout_s: float
) -> None:
    if time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
        return
    who = f"process {owner[1]} on {owner[0]}" if owner else "another exaslurm command"
    raise DeploymentError(
        f"{who} has been submitting or stopping this deployment for more than {timeout_s:g} s",
        remedy=f"wait for it; if that process is dead, remove {path}",
    )
