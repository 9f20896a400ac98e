"""Limits of processes, shared memory, the clock's synchronisation."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator

from exaslurm.core.checks import Check, failed, passed, skipped, warned
from exaslurm.preflight.host import Host

MIN_NOFILE = 4096
# What NCCL and UCX register at least; the kernel's default (8 MiB, before 5.16 64 KiB) is not it.
MIN_MEMLOCK_MIB = 64
_TIME_ERROR = 5
_STA_UNSYNC = 0x0040


def check_limits(host: Host, *, rdma: bool) -> Iterator[Check]:
    """Open files and locked memory of this process, which its children inherit."""
    text = host.read("/proc/self/limits")
    if text is None:
        yield skipped("limits.nofile", "/proc/self/limits cannot be read")
        return
    found = dict(_parse(text))
    _, hard = found.get("Max open files", ("?", "?"))
    if hard.isdigit() and int(hard) < MIN_NOFILE:
        remedy = (
            f"engines and routers need {MIN_NOFILE} open files or more: raise `ulimit -Hn` where "
            "the job is submitted (Slurm hands it on), or ask the site for LimitNOFILE of slurmd"
        )
        yield failed("limits.nofile", f"{hard} (hard limit)", remedy)
    else:
        yield passed("limits.nofile", f"{hard} (hard limit)")
    soft, hard = found.get("Max locked memory", ("?", "?"))
    if not soft.isdigit():
        yield passed("limits.memlock", soft)
        return
    value = f"{int(soft) // 1024} KiB"
    remedy = (
        "RDMA locks memory: `ulimit -l unlimited` where the job is submitted, or ask the site for "
        "LimitMEMLOCK=infinity of slurmd and PropagateResourceLimitsExcept=MEMLOCK"
    )
    if rdma or int(soft) < 64 << 10:
        low = int(soft) < MIN_MEMLOCK_MIB << 20
        yield (failed if low else warned)("limits.memlock", value, remedy)
    else:
        yield passed("limits.memlock", f"{value}; no RDMA device that would need more")


def _parse(text: str) -> Iterator[tuple[str, tuple[str, str]]]:
    for line in text.splitlines():
        words = re.split(r"\s{2,}", line.strip())
        if len(words) >= 3:
            yield words[0], (words[1], words[2])


def check_shm(host: Host, need_mib: int) -> Check:
    """/dev/shm holds Ray's objects and what the processes of an engine pass to each other."""
    ident = "shm.size"
    if host.recorded:
        return skipped(ident, "a recorded tree does not tell")
    path = host.path("/dev/shm")
    try:
        room = os.statvfs(path)
    except OSError as error:
        return failed(ident, f"/dev/shm: {error.strerror}", "mount a tmpfs on /dev/shm of the node")
    total, free = (room.f_frsize * blocks >> 20 for blocks in (room.f_blocks, room.f_bavail))
    value = f"{free} MiB free of {total} MiB, {need_mib} MiB needed"
    if not os.access(path, os.W_OK | os.X_OK):
        return failed(ident, f"{value}; not writable", "its mode must be 1777")
    if free < need_mib:
        remedy = (
            "enlarge it (mount -o remount,size=...; in a container --shm-size or --ipc=host), "
            "remove what ended jobs left there, or lower `slurm: ray: object_store_mib`"
        )
        return failed(ident, value, remedy)
    return passed(ident, value)


class _Timex(ctypes.Structure):
    """struct timex of <sys/timex.h>, the part that is read."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    ]


def check_clock(host: Host) -> Check:
    """Whether the kernel says that something keeps the clock right."""
    ident = "clock.sync"
    if host.recorded:
        return skipped(ident, "a recorded tree does not tell")
    state = _Timex()
    code = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(state))
    if code < 0:
        return skipped(ident, f"adjtimex: {os.strerror(ctypes.get_errno())}")
    if code == _TIME_ERROR or state.status & _STA_UNSYNC:
        return warned(
            ident,
            "nothing keeps the clock right",
            "audit records and tokens carry times: run chrony, ntpd or systemd-timesyncd",
        )
    return passed(ident, f"kept, within {state.maxerror / 1000:.1f} ms")
