"""What /proc tells of processes."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


def figures(pid: int) -> dict[str, float] | None:
    """``mem_mib`` (resident), ``descriptors``, ``threads``, ``age_s`` and ``cpu_s`` of a process;
    None if it is gone."""
    place = Path("/proc") / str(pid)
    try:
        stat = (place / "stat").read_text().rsplit(")", 1)[1].split()
        resident = int((place / "statm").read_text().split()[1])
        descriptors = len(os.listdir(place / "fd"))
        up_s = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, IndexError, ValueError):
        return None
    return {
        "mem_mib": resident * _PAGE_MIB,
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
