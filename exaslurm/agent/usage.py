"""What the processes of an engine use, from /proc."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_OWN_MEMORY = ("RssAnon:", "RssShmem:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """``cpu_s``: seconds of CPU time so far. ``mem_mib``: memory that only the end of the processes
    would free, without files that are mapped; what several of them share counts in each."""

    cpu_s: float
    mem_mib: int


def usage_of(pids: Collection[int], *, proc: Path = Path("/proc")) -> Usage:
    """Of those of the processes that live."""
    ticks = kib = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            stat = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
            fields = stat[stat.rfind(")") + 2 :].split()
            ticks += int(fields[11]) + int(fields[12])
            status = (proc / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
            kib += sum(
                int(line.split()[1]) for line in status.splitlines() if line.startswith(_OWN_MEMORY)
            )
    return Usage(cpu_s=ticks / _TICKS_PER_S, mem_mib=kib // 1024)
