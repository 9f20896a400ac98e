"""Where processes really run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable


def cpus_of(pids: Iterable[int]) -> tuple[int, ...]:
    """Union of the CPUs that all threads of these processes may run on; empty if none lives."""
    found: set[int] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError):
                    found |= os.sched_getaffinity(int(thread))
    return tuple(sorted(found))
