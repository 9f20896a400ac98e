"""One submit, stop or effect of a supervisor at a time: a lease on the deployment.

The directory ``lease`` of the run directory holds a file for each time that somebody took the
lease, named by its number (the *epoch*); the newest counts, and older ones are removed. Its holder
gives signs of life by changing the file's time; ``N.free`` beside it says that it was given back.
Who waits watches that time with a clock of its own, so clocks may differ, and takes over when
nothing has changed for ``LEASE_S``, or at once from a dead process of the same host. Of several
takers one wins: the file of the next epoch is linked into place, which file systems without locks
do as well as others.

A holder that was paused and has lost the lease meanwhile finds out before its next effect
(``require_lease``). Its files can no longer get to their places either: while the lease is held,
files of the run directory are made in a directory of that epoch and moved into place, and whoever
takes over removes that directory before it looks at anything. So what the run directory holds then
is all that earlier holders will ever have written.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from exaslurm.errors import DeploymentError, StateError, TakenOver
from exaslurm.rundir import RunDir
from exaslurm.util.files import create_once, make_private_dir, staging, state_error
from exaslurm.util.process import is_alive, start_ticks

# Without a sign of life for so long the lease is anybody's.
LEASE_S = 20.0
BEAT_S = 4.0
# No submit or stop takes this long: a process that still holds the lease hangs.
MOST_HELD_S = 3600.0
_PAUSE_S, _MOST_PAUSE_S = 0.05, 0.5
_ENTRY = re.compile(r"(\d+)(\.free)?")
_STAGE = re.compile(r"(\d+)\.[0-9a-f]+\.d")
_REMOVALS = 100

_held: ContextVar[Lease | None] = ContextVar("lease", default=None)


class Lease:
    """The right to act on a deployment, as long as nobody has taken it over."""

    def __init__(self, place: Path, epoch: int, text: str, stage: Path) -> None:
        self.epoch = epoch
        self.stage = stage
        self._place = place
        self._path = place / str(epoch)
        self._text = text
        self._beats = int(time.time())
        self._over = threading.Event()
        threading.Thread(target=self._beat_on, name="lease", daemon=True).start()

    def check(self) -> None:
        """TakenOver if somebody has taken over, StateError if that cannot be seen."""
        if _newest(self._place) != (self.epoch, False) or _read(self._path) != self._text:
            raise _lost()

    def fence(self) -> None:
        """Keep earlier holders from writing."""
        for name in _names(self._place):
            stage, entry = _STAGE.fullmatch(name), _ENTRY.fullmatch(name)
            if stage is not None and int(stage[1]) < self.epoch:
                _remove_stage(self._place / name)
            elif entry is not None and int(entry[1]) < self.epoch:
                with contextlib.suppress(OSError):  # they do no harm
                    (self._place / name).unlink()

    def give_back(self) -> None:
        """Free it. If that cannot be written down, it is free when its time is over."""
        self._over.set()
        _drop(self.stage)
        with contextlib.suppress(OSError):
            os.link(self._path, _free(self._path))

    def _beat_on(self) -> None:
        deadline = time.monotonic() + MOST_HELD_S
        while not self._over.wait(BEAT_S) and time.monotonic() < deadline:
            # Changing a time needs no space: a full disk ends no lease.
            self._beats = max(self._beats + 1, int(time.time()))
            try:
                os.utime(self._path, (self._beats, self._beats))
            except FileNotFoundError:
                return  # somebody has taken over
            except OSError:
                continue


@contextlib.contextmanager
def deployment_lock(run_dir: RunDir, *, timeout_s: float = 60.0) -> Iterator[Lease]:
    """Hold the deployment against other submits, stops and supervisors.

    Files below the run directory that are written in this context (``write_atomic``) are fenced.
    Raises DeploymentError after ``timeout_s``, StateError if the run directory cannot be used.
    """
    place = run_dir.path / "lease"
    try:
        place.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise state_error("make directory", place, error) from error
    lease = _acquire(place, timeout_s)
    try:
        lease.fence()
        token = _held.set(lease)
        try:
            with staging(run_dir.path, lease.stage):
                yield lease
        finally:
            _held.reset(token)
    finally:
        lease.give_back()


def require_lease() -> None:
    """TakenOver if the lease that this code was called under is lost. To be called right before
    anything that cannot be taken back; nothing happens where none was taken."""
    lease = _held.get()
    if lease is not None:
        lease.check()


def _acquire(place: Path, timeout_s: float) -> Lease:
    deadline = time.monotonic() + timeout_s
    watch = _Watch(place)
    pause_s = _PAUSE_S
    while True:
        epoch, free = _newest(place)
        if free or watch.is_over(epoch):
            lease = _take(place, epoch + 1)
            if lease is not None:
                return lease
        if time.monotonic() >= deadline:
            raise DeploymentError(
                f"{_name_of(place / str(epoch))} has been submitting, stopping or supervising this "
                f"deployment for more than {timeout_s:g} s",
                remedy=f"wait for it; if it dies, it is not waited for longer than {LEASE_S:g} s",
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _MOST_PAUSE_S)


class _Watch:
    """Looks for signs of life of a lease's holder."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._seen: tuple[int, int] | None = None
        self._since_s = 0.0

    def is_over(self, epoch: int) -> bool:
        """Whether the holder of this epoch is dead, or must be taken for dead."""
        path = self._place / str(epoch)
        before_s = time.monotonic()
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # NFS asks its server when one opens
        except FileNotFoundError:
            return False  # there is a newer one by now
        except OSError as error:
            raise state_error("read", path, error) from error
        try:
            beat = os.fstat(fd).st_mtime_ns
        finally:
            os.close(fd)
        if (epoch, beat) != self._seen:
            self._seen, self._since_s = (epoch, beat), time.monotonic()
        elif before_s - self._since_s > LEASE_S:
            return True
        return _is_dead(path)


def _take(place: Path, epoch: int) -> Lease | None:
    """The lease of this epoch, if nobody else was faster."""
    nonce = secrets.token_hex(8)
    text = json.dumps({**_own(), "nonce": nonce})
    path, stage = place / str(epoch), place / f"{epoch}.{nonce}.d"
    # First of all: made later, it might be after the next holder has looked for it.
    make_private_dir(stage)
    try:
        # Over NFS, an answer may be lost, and the second try then finds what the first one made.
        if create_once(path, text) or _read(path) == text:
            if _newest(place)[0] == epoch:
                return Lease(place, epoch, text, stage)
            # What was free when it was looked at is long gone, and so was its successor's file.
            with contextlib.suppress(OSError):
                path.unlink()
    except BaseException:
        _drop(stage)
        raise
    _drop(stage)
    return None


def _drop(stage: Path) -> None:
    with contextlib.suppress(StateError):  # later holders remove it
        _remove_stage(stage)


def _newest(place: Path) -> tuple[int, bool]:
    """The newest epoch, and whether it is free; 0, which is free, where there was none. Each file
    is there from its making until a newer one is, so no look at the directory misses the newest.
    StateError if there is no look at it."""
    entries = [match for name in _names(place) if (match := _ENTRY.fullmatch(name))]
    newest = max((int(match[1]) for match in entries), default=0)
    free = any(match[2] and int(match[1]) == newest for match in entries)
    return newest, free or newest == 0


def _names(place: Path) -> list[str]:
    try:
        return os.listdir(place)
    except OSError as error:
        raise state_error("list", place, error) from error


def _free(path: Path) -> Path:
    return path.with_name(f"{path.name}.free")


def _remove_stage(path: Path) -> None:
    """Take a holder's directory away, so that nothing in it can be moved any more, nor anything
    be made in it. StateError if that cannot be."""
    gone = path.with_name(f".{path.name}")
    try:
        with contextlib.suppress(FileNotFoundError):
            path.rename(gone)
        # Another NFS client may know the directory by its handle: it has to go for good.
        for _ in range(_REMOVALS):
            for name in os.listdir(gone):
                with contextlib.suppress(FileNotFoundError):
                    (gone / name).unlink()
            try:
                gone.rmdir()
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            if all(name.startswith(".nfs") for name in os.listdir(gone)):
                return  # a process of this host has it open: it cannot name it any more
    except FileNotFoundError:
        return
    except OSError as error:
        raise state_error("remove", path, error) from error
    raise StateError(f"cannot remove {path}: files are made in it again and again")


# --- who holds it ------------------------------------------------------------------------------


def _own() -> dict[str, object]:
    pid = os.getpid()
    return {
        "host": socket.gethostname(),
        "boot": _boot_id(),
        "pids": _pid_namespace(),
        "pid": pid,
        "start_ticks": start_ticks(pid),
    }


def _is_dead(path: Path) -> bool:
    """Whether the holder is known to be dead: by its pid, where that can be seen from here, or
    because its host has been booted since."""
    try:
        owner = json.loads(_read(path) or "")
        if owner["host"] != socket.gethostname():
            return False
        if owner["boot"] != _boot_id():
            return True
        seen = owner["pids"] == _pid_namespace()
        return seen and not is_alive(int(owner["pid"]), int(owner["start_ticks"]))
    except (ValueError, KeyError, TypeError):
        return False


def _name_of(path: Path) -> str:
    try:
        owner = json.loads(_read(path) or "")
        return f"process {owner['pid']} on {owner['host']}"
    except (ValueError, KeyError, TypeError):
        return "another exaslurm command"


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None  # it has just been removed


def _boot_id() -> str:
    return (_read(Path("/proc/sys/kernel/random/boot_id")) or "").strip()


def _pid_namespace() -> str:
    """Pids mean something within it only: a container may have the host's name."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _lost() -> TakenOver:
    return TakenOver(
        "another process has taken over while this one gave no sign of life: nothing more is done",
        remedy="look at 'exaslurm status'; then run the command again if need be",
    )
