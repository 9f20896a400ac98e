"""Become another program, pinned: ``python -S -E -s pinned_exec.py FILE``.

FILE is a private JSON file with the fields of ``exaslurm.core.execspec.ExecSpec``; it is removed
before the program starts. This runs between fork and exec of every process that init starts, so it
uses the standard library alone and imports nothing from exaslurm. What goes wrong is said in the
program's own log; exit code 78 (EX_CONFIG): the place or the secret is not what was planned, 127:
the program cannot be run.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import resource
import signal
import stat
import sys
from collections.abc import Mapping, Sequence
from typing import Any

EX_CONFIG = 78
EX_NOT_RUNNABLE = 127

# glibc has no wrapper (libnuma has, but need not be there); numbers from the kernel's
# arch/*/syscall*.tbl.
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "ppc64le": 261, "s390x": 270}
_MPOL_BIND = 2
_MAX_OPEN_FILES = 65536


class RefusedError(Exception):
    """The program must not start like this; the message says why."""


def read_secret(path: str) -> str:
    """The content of a file that nobody else can read, without the line end."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(fd, encoding="utf-8") as file:
        info = os.fstat(fd)
        if info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & 0o077:
            raise RefusedError(f"{path}: must belong to uid {os.getuid()} with mode 0600")
        return file.read().rstrip("\r\n")


def environment(spec: Mapping[str, Any], base: Mapping[str, str]) -> dict[str, str]:
    """``base`` less ``unset``, plus ``env``, plus the secrets."""
    unset = set(spec.get("unset") or ())
    result = {name: value for name, value in base.items() if name not in unset}
    result.update(spec.get("env") or {})
    for name, path in (spec.get("secret_env") or {}).items():
        result[name] = read_secret(path)
    return result


def bind_memory(nodes: Sequence[int]) -> str | None:
    """Take all memory from these NUMA nodes, each page from the nearest of them that has some; a
    sentence if that is not possible.

    Containers and some kernels forbid the call; a replica that runs with memory from elsewhere is
    slower, not wrong, so this is not a reason to stop. This is what ``numactl --membind`` does,
    which need not be there.
    """
    names = ",".join(map(str, sorted(nodes)))
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return f"memory is not bound to NUMA node {names}: unknown machine {platform.machine()}"
    bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    words = max(nodes) // bits + 1
    mask = (ctypes.c_ulong * words)()
    for node in nodes:
        mask[node // bits] |= 1 << (node % bits)
    libc = ctypes.CDLL(None, use_errno=True)
    # maxnode counts one bit more than the mask has (mempolicy(2), "Bugs").
    if libc.syscall(number, _MPOL_BIND, ctypes.byref(mask), words * bits + 1) == 0:
        return None
    return f"memory is not bound to NUMA node {names}: {os.strerror(ctypes.get_errno())}"


def _redirect(log: str | None) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if log is not None:
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)
    os.close(null)


def _raise_limits() -> None:
    """Servers need more open files than the usual soft limit of 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"exaslurm: {text}\n".encode())


def execute(spec: Mapping[str, Any]) -> None:
    """Become the program; returns only by an exception."""
    os.umask(0o077)
    # Python ignores these two, and what is ignored stays so across exec.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    _redirect(spec.get("log"))
    _raise_limits()
    cores = spec.get("cores") or ()
    if cores:
        try:
            os.sched_setaffinity(0, cores)
        except OSError as error:
            raise RefusedError(
                f"cannot run on CPUs {sorted(cores)}: {error.strerror}; the step may use "
                f"{sorted(os.sched_getaffinity(0))}"
            ) from error
    if spec.get("mem_nodes"):
        complaint = bind_memory([int(node) for node in spec["mem_nodes"]])
        if complaint:
            _say(complaint)
    env = environment(spec, os.environ)
    if spec.get("cwd"):
        os.chdir(spec["cwd"])
    argv = list(spec["argv"])
    os.execvpe(argv[0], argv, env)


def main(argv: list[str]) -> int:
    """Read the file, remove it, become the program."""
    if len(argv) != 2:
        _say("usage: pinned_exec.py FILE")
        return EX_CONFIG
    try:
        with open(argv[1], encoding="utf-8") as file:
            spec = json.load(file)
        os.unlink(argv[1])
        execute(spec)
    except RefusedError as error:
        _say(str(error))
        return EX_CONFIG
    except Exception as error:  # whatever is in the file: say it in the log
        _say(f"cannot start the program of {argv[1]}: {error!r}")
        return EX_NOT_RUNNABLE
    return 0  # not reached: execute replaces this process


if __name__ == "__main__":
    sys.exit(main(sys.argv))
