"""Which processes there are, which namespaces they live in, and how to end them for certain.

A process is known by pid *and* start time, a host's by its PID namespace: no name is matched
against the whole machine, so nothing of anyone else is ever signalled.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import LabError


@dataclass(frozen=True)
class Process:
    """A process as the real machine sees it."""

    pid: int
    started: int  # clock ticks after boot
    name: str
    state: str  # one letter, see proc(5)


def look_up(pid: int) -> Process | None:
    """Read /proc/PID/stat; None if there is no such process (or only its corpse)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name stands in brackets and may itself hold spaces and brackets.
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    if fields[0] in ("Z", "X"):
        return None
    return Process(pid, int(fields[19]), head.partition("(")[2], fields[0])


def is_alive(pid: int, started: int) -> bool:
    process = look_up(pid)
    return process is not None and process.started == started


def pid_namespace(pid: int) -> str | None:
    """The kernel's name of the PID namespace of `pid`, such as `pid:[4026532345]`."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        # Processes with more capabilities than ours are closed to us, and so are not ours.
        return None


def all_pids() -> Iterator[int]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            yield int(entry)


def in_namespaces(namespaces: set[str]) -> list[Process]:
    """Living processes in any of these PID namespaces."""
    found = []
    for pid in all_pids():
        if pid_namespace(pid) in namespaces:
            process = look_up(pid)
            if process is not None:
                found.append(process)
    return found


def end(processes: list[Process], timeout_s: float) -> None:
    """SIGKILL them and wait until all are gone. Raises LabError that names the survivors."""
    for process in processes:
        if is_alive(process.pid, process.started):
            try:
                os.kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
    deadline = time.monotonic() + timeout_s
    left = processes
    while left := [process for process in left if is_alive(process.pid, process.started)]:
        if time.monotonic() > deadline:
            names = ", ".join(f"{process.pid} ({process.name})" for process in left)
            raise LabError(f"processes still there {timeout_s:g} s after SIGKILL: {names}")
        time.sleep(0.02)
