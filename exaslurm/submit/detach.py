"""A process that lives on when the shell that started it does not."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from exaslurm.errors import StateError
from exaslurm.util.files import PRIVATE_FILE, state_error
from exaslurm.util.process import start_ticks

_WATCH_S = 1.0
_PAUSE_S = 0.02
_ERROR = "exaslurm: error: "


def spawn_detached(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    log: Path,
    is_up: Callable[[int], bool] = lambda _: False,
    watch_s: float = _WATCH_S,
) -> tuple[int, int]:
    """Start ``argv`` in a session of its own, its output in ``log``; pid and start ticks.

    It is watched for ``watch_s``, or until ``is_up`` says so of its pid: StateError with its last
    words in the log if it ends before.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        fd = os.open(log, flags, PRIVATE_FILE)
    except OSError as error:
        raise state_error("write", log, error) from error
    begin = os.fstat(fd).st_size
    try:
        # posix_spawn, as this may be a notebook with many threads, in which fork is unsafe; the
        # shell only leaves the current directory, which may be one that has to be unmounted.
        pid = os.posix_spawn(
            "/bin/sh",
            ["sh", "-c", 'cd / && exec "$@"', "sh", *argv],
            dict(environ),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, fd, 1),
                (os.POSIX_SPAWN_DUP2, fd, 2),
            ],
            setsid=True,
        )
    except OSError as error:
        raise state_error("start", Path(argv[0]), error) from error
    finally:
        os.close(fd)
    ticks = start_ticks(pid)
    deadline = time.monotonic() + watch_s
    while time.monotonic() < deadline and not is_up(pid):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            raise StateError(
                f"{argv[2] if argv[1] == '-m' else argv[0]} ended at once (exit code "
                f"{os.waitstatus_to_exitcode(status)}): {_last_words(log, begin)}",
                remedy=f"see {log}",
            )
        time.sleep(_PAUSE_S)
    if ticks is None:
        raise StateError(f"process {pid} is not to be seen in /proc", remedy=f"see {log}")
    return pid, ticks


def reap(pid: int) -> None:
    """Let an ended process go from the process table, if it is this process's child: a notebook
    that submits and stops lives on."""
    with contextlib.suppress(OSError):
        os.waitpid(pid, os.WNOHANG)


def _last_words(log: Path, begin: int) -> str:
    """What a process that ended has said, from that byte of its log: its error if it is one of
    ours (a remedy may follow), else its last line."""
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode("utf-8", errors="replace").strip().splitlines()
    for line in reversed(lines):
        if line.startswith(_ERROR):
            return line.removeprefix(_ERROR)
    return lines[-1] if lines else "it printed nothing"
