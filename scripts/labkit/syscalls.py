"""The few Linux calls that Python 3.11 does not offer: namespaces and mounts."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
ALL_NAMESPACES = (
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
)

MS_RDONLY = 1
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


def mount(
    source: str | None, target: str, fstype: str | None, flags: int = 0, options: str | None = None
) -> None:
    """mount(2). Raises OSError that names the target."""
    result = _libc.mount(
        _bytes(source), _bytes(target), _bytes(fstype), ctypes.c_ulong(flags), _bytes(options)
    )
    _check(result, f"mount {source} on {target}")


def bind(source: str, target: str, *, recursive: bool = False, read_only: bool = False) -> None:
    """Show `source` (a file or a directory) at `target` too."""
    mount(source, target, None, MS_BIND | (MS_REC if recursive else 0))
    if read_only:
        # The kernel ignores MS_RDONLY on the first bind: it takes a second call.
        mount(None, target, None, MS_BIND | MS_REMOUNT | MS_RDONLY)


def unmount_lazily(target: str) -> None:
    """umount2(2) with MNT_DETACH: works although the file system is in use or hangs."""
    _check(_libc.umount2(_bytes(target), MNT_DETACH), f"umount {target}")


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def pivot_root(new_root: str) -> None:
    """Make `new_root` the root directory and let go of the old one."""
    os.chdir(new_root)
    _check(_libc.pivot_root(b".", b"."), f"pivot_root {new_root}")
    unmount_lazily(".")
    os.chdir("/")


def enter_namespaces(pid: int, flags: int = ALL_NAMESPACES) -> None:
    """Join those of process `pid`. A new PID namespace holds only for children."""
    pidfd = os.pidfd_open(pid)
    try:
        _check(_libc.setns(pidfd, flags), f"setns to process {pid}")
    finally:
        os.close(pidfd)


def signal_when_parent_dies(number: int) -> None:
    _check(_libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0), "prctl PR_SET_PDEATHSIG")
