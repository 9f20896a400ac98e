"""What /proc tells of processes."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def figures(pid: int) -> dict[str, float] | None:
    """``mem_mib``, ``descriptors``, ``threads``, ``age_s`` and ``cpu_s`` of a process; None if it
    is gone. Memory is what it has written to, swapped or not; pages of files that it maps come and
    go as the kernel likes, and nothing is lost with them."""
    place = Path("/proc") / str(pid)
    try:
        stat = (place / "stat").read_text().rsplit(")", 1)[1].split()
        written_kib = sum(
            int(line.split()[1])
            for line in (place / "status").read_text().splitlines()
            if line.startswith(("RssAnon:", "VmSwap:"))
        )
        descriptors = len(os.listdir(place / "fd"))
        up_s = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, IndexError, ValueError):
        return None
    return {
        "mem_mib": written_kib / 1024,
        "descriptors": float(descriptors),
        "threads": float(stat[17]),
        "age_s": up_s - int(stat[19]) / _TICKS,
        "cpu_s": (int(stat[11]) + int(stat[12])) / _TICKS,
    }


def children(pid: int) -> list[int]:
    """Numbers of the children of a process, the oldest first."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            text = Path(f"/proc/{pid}/task/{task}/children").read_text()
            found += [int(word) for word in text.split()]
    except OSError:
        return []
    return sorted(found, key=lambda child: -(figures(child) or {"age_s": 0.0})["age_s"])
