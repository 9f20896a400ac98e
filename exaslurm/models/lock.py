"""A lock file on a shared file system, whose owner may die on any node.

The file is made with O_EXCL, which holds on NFS and Lustre where ``flock`` may not. It names its
owner, who touches it while it works. It is stale when its owner is a process of this host that is
gone, or when nobody touched it for a while *by the waiter's own clock*: clocks of nodes differ.
What it guards must be safe even when a lock is broken wrongly: here, only work is done twice.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from exaslurm.core import codec
from exaslurm.errors import ModelError, StateError
from exaslurm.util.files import create_once, state_error
from exaslurm.util.process import is_alive, start_ticks

TOUCH_S = 5.0
STALE_S = 60.0
_POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who holds a lock: a process by pid and start time on a boot of a host."""

    host: str
    boot_id: str
    pid: int
    start_ticks: int
    token: str

    def is_gone(self) -> bool:
        """Whether the owner surely runs no more (a process of another host never surely)."""
        if self.host != socket.gethostname():
            return False
        return self.boot_id != _boot_id() or not is_alive(self.pid, self.start_ticks)


@contextlib.contextmanager
def hold(path: Path, *, timeout_s: float) -> Iterator[str]:
    """Hold the lock file ``path``; yields a token that is unique to this holding.

    Waits up to ``timeout_s``, then raises ModelError naming the owner.
    """
    owner = _myself()
    _acquire(path, owner, time.monotonic() + timeout_s)
    released = threading.Event()
    toucher = threading.Thread(target=_keep_touching, args=(path, released), daemon=True)
    toucher.start()
    try:
        yield owner.token
    finally:
        released.set()
        toucher.join(timeout=TOUCH_S)
        if _owner_of(path) == owner:
            path.unlink(missing_ok=True)


def _acquire(path: Path, owner: Owner, deadline: float) -> None:
    text = codec.dumps(owner)
    seen: tuple[Owner | None, int] | None = None
    seen_at = time.monotonic()
    while not create_once(path, text):
        now = time.monotonic()
        state = _state_of(path)
        if state is None:
            continue  # released since: try again at once
        if state != seen:
            seen, seen_at = state, now
        holder = state[0]
        if now - seen_at > STALE_S or (holder is not None and holder.is_gone()):
            _break(path, holder)
            continue
        if now > deadline:
            who = f"{holder.host}, process {holder.pid}" if holder else "an unknown process"
            raise ModelError(
                f"waited too long for {path}, held by {who}",
                remedy="if nothing there prepares a model any more, remove that file",
            )
        time.sleep(_POLL_S)


def _break(path: Path, judged: Owner | None) -> None:
    """Remove a stale lock, but not one that another waiter took in the meantime."""
    aside = path.with_name(f"{path.name}.stale-{secrets.token_hex(4)}")
    with contextlib.suppress(FileNotFoundError):
        path.rename(aside)
        if _owner_of(aside) != judged:
            with contextlib.suppress(FileExistsError):
                os.link(aside, path)
        aside.unlink()


def _keep_touching(path: Path, released: threading.Event) -> None:
    while not released.wait(TOUCH_S):
        with contextlib.suppress(OSError):
            os.utime(path)


def _state_of(path: Path) -> tuple[Owner | None, int] | None:
    """Owner and last touch (ns, the server's clock); None if there is no such file.

    The file is opened first: NFS serves ``stat`` from a cache, and asks the server on ``open``.
    """
    try:
        with path.open("rb") as file:
            touched_ns = os.fstat(file.fileno()).st_mtime_ns
            text = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise state_error("read", path, error) from error
    try:
        return codec.loads(Owner, text, where=str(path)), touched_ns
    except StateError:
        return None, touched_ns


def _owner_of(path: Path) -> Owner | None:
    state = _state_of(path)
    return state[0] if state else None


def _myself() -> Owner:
    pid = os.getpid()
    return Owner(
        host=socket.gethostname(),
        boot_id=_boot_id(),
        pid=pid,
        start_ticks=start_ticks(pid) or 0,
        token=secrets.token_hex(4),
    )


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
