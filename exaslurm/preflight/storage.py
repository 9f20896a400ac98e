"""Directories: there, the shared one really shared, writable, with room, and fast enough.

Every look at one runs on a thread of its own with a deadline: a hung mount is a finding, not the
end of the examination.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import secrets
import statistics
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from exaslurm.core.checks import Check, failed, passed, skipped, warned
from exaslurm.preflight.host import Host

T = TypeVar("T")

GIB = 1024**3
HUNG_S = 15.0
SPEED_S = 45.0
# Sockets of Ray lie about 60 characters below its directory, ours about 40 below that of a cell;
# the kernel takes 107.
MAX_TMP_CHARS = 16
_PROBE_MIB = 4
_FEW_FILES = 10_000
# A file's life: created, looked at, renamed, removed. A loaded parallel file system takes 5 ms.
SLOW_FILE_MS, STUCK_FILE_MS = 50.0, 500.0
SLOW_MIB_S, STUCK_MIB_S = 20.0, 2.0


class HungError(Exception):
    """The file system did not answer in time."""


def bounded(call: Callable[[], T], timeout_s: float) -> T:
    """The result of ``call``, made on a thread of its own; HungError if it takes longer."""
    result: list[T] = []
    problem: list[BaseException] = []

    def work() -> None:
        try:
            result.append(call())
        except BaseException as error:
            problem.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        raise HungError(f"no answer in {timeout_s:g} s")
    if problem:
        raise problem[0]
    return result[0]


def check_directory(
    host: Host,
    ident: str,
    directory: str,
    *,
    min_free_gib: float,
    must_exist: bool = False,
    witness: tuple[str, str] | None = None,
) -> Check:
    """One directory. Where it is not there yet, the nearest one above it is looked at, in which it
    would be made, unless it ``must_exist``."""
    if host.recorded:
        return skipped(ident, "a recorded tree does not tell")
    try:
        return bounded(
            lambda: _directory(host, ident, directory, min_free_gib, must_exist, witness), HUNG_S
        )
    except HungError as hung:
        return failed(
            ident,
            f"{directory}: {hung}",
            "its file server does not answer this node: drain the node, tell the site",
        )


_MOUNT = "mount it on this node, or name another directory in the site config (`storage`)"


def _directory(
    host: Host,
    ident: str,
    directory: str,
    min_free_gib: float,
    must_exist: bool,
    witness: tuple[str, str] | None,
) -> Check:
    path = host.path(directory)
    place = next((item for item in (path, *path.parents) if item.is_dir()), Path("/"))
    if must_exist and place != path:
        return failed(ident, f"{directory} is not there (nearest: {place})", _MOUNT)
    missing = "" if place == path else f"{directory} is not there, and "
    if witness is not None and host.read(witness[0]) != witness[1]:
        return failed(
            ident,
            f"{missing}{witness[0]}, written on another host, is not to be seen",
            f"the file system is not mounted here, or is not the shared one: {_MOUNT}",
        )
    try:
        _try_write(place)
        room = os.statvfs(place)
    except OSError as error:
        return failed(
            ident,
            f"{missing}cannot write to {place}: {error.strerror}",
            _WRITE_REMEDIES.get(error.errno or 0, _MOUNT),
        )
    free_gib = room.f_bavail * room.f_frsize / GIB
    value = f"{directory}: {free_gib:.1f} GiB free" + ("" if place == path else f" (in {place})")
    if free_gib < min_free_gib:
        return warned(ident, value, f"less than {min_free_gib:g} GiB: free some, or move it")
    if room.f_files and room.f_favail < _FEW_FILES:
        return warned(ident, f"{value}, {room.f_favail} inodes free", "remove some files")
    return passed(ident, value)


_WRITE_REMEDIES = {
    errno.ENOSPC: "the file system is full: free some space there",
    errno.EDQUOT: "your quota there is used up: free some space",
    errno.EROFS: "it is read-only here: drain the node, tell the site",
    errno.ENOTCONN: "the mount is dead: drain the node, tell the site",
    errno.ESTALE: "the mount is stale: drain the node, tell the site",
}


def _try_write(path: Path) -> None:
    """One MiB, on disk: a full disk or a used-up quota shows only then."""
    probe = path / f".exaslurm-doctor-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        with probe.open("xb") as file:
            file.write(bytes(1 << 20))
            file.flush()
            os.fsync(file.fileno())
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def check_speed(host: Host, ident: str, directory: str) -> Check:
    """How long a small file lives, and how fast a larger one is written and read back (past the
    page cache where the file system can)."""
    if host.recorded:
        return skipped(ident, "a recorded tree does not tell")
    path = host.path(directory)
    place = next((item for item in (path, *path.parents) if item.is_dir()), Path("/"))
    try:
        file_ms, write_mib_s, read_mib_s = bounded(lambda: _speed(host, place), SPEED_S)
    except HungError:
        value = f"{directory}: {_PROBE_MIB} MiB not written and read within {SPEED_S:g} s"
        return failed(ident, value, _SLOW)
    except OSError as error:
        return skipped(ident, f"{directory}: {error.strerror}")
    value = (
        f"{directory}: a small file {file_ms:.1f} ms, write {write_mib_s:.0f} MiB/s, "
        f"read {read_mib_s:.0f} MiB/s"
    )
    slowest = min(write_mib_s, read_mib_s)
    if file_ms > STUCK_FILE_MS or slowest < STUCK_MIB_S:
        return failed(ident, value, _SLOW)
    if file_ms > SLOW_FILE_MS or slowest < SLOW_MIB_S:
        return warned(ident, value, _SLOW)
    return passed(ident, value)


_SLOW = (
    "weights and logs go through it: compare with other nodes (`doctor --partition`), drain a node "
    "that stands out, else stage models on node-local storage (`storage: local`)"
)


def _speed(host: Host, place: Path) -> tuple[float, float, float]:
    base = place / f".exaslurm-doctor-{os.getpid()}-{secrets.token_hex(4)}"
    renamed = base.with_suffix(".renamed")
    lives = []
    try:
        for _ in range(5):
            begin = host.timer()
            base.write_bytes(b"x")
            base.stat()
            base.rename(renamed)
            renamed.unlink()
            lives.append((host.timer() - begin) * 1000)
        begin = host.timer()
        with base.open("wb") as file:
            block = os.urandom(1 << 20)
            for _ in range(_PROBE_MIB):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        write_s = host.timer() - begin
        begin = host.timer()
        _read_back(base)
        read_s = host.timer() - begin
    finally:
        for path in (base, renamed):
            with contextlib.suppress(OSError):
                path.unlink()
    return statistics.median(lives), _PROBE_MIB / write_s, _PROBE_MIB / read_s


def _read_back(path: Path) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:  # tmpfs and some FUSE file systems have no O_DIRECT
        fd = os.open(path, os.O_RDONLY)
    try:
        with mmap.mmap(-1, 1 << 20) as buffer:  # aligned, as O_DIRECT wants
            while os.readv(fd, [buffer]):
                pass
    finally:
        os.close(fd)


def check_tmp(directory: str, host: Host) -> Check:
    """The nodes' short-lived directory: there, writable, and short enough for socket paths."""
    ident = "tmp.path"
    if len(directory) > MAX_TMP_CHARS:
        return failed(
            ident,
            f"{directory} has {len(directory)} characters",
            f"socket paths are limited to 107 bytes: set a `storage: ram` of at most "
            f"{MAX_TMP_CHARS} characters",
        )
    return check_directory(host, ident, directory, min_free_gib=0.25, must_exist=True)
