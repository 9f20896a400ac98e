"""Naming a process safely: a pid is reused, a pid with its start time is not."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def start_ticks(pid: int) -> int | None:
    """Start time of a living process in clock ticks since boot (field 22 of /proc/PID/stat);
    None if there is no such process or it is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text[text.rfind(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])


def is_alive(pid: int, ticks: int) -> bool:
    """Whether that very process still runs."""
    return start_ticks(pid) == ticks


def send_signal(pid: int, ticks: int, number: signal.Signals, *, group: bool = False) -> bool:
    """Signal that very process (or the process group it leads); false if it is gone."""
    if not is_alive(pid, ticks):
        return False
    try:
        if group:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
