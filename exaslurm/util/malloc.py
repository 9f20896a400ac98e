"""How the C library keeps the memory of a long-lived process (see mallopt(3)).

Other C libraries than glibc have no such options; there nothing is set.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from enum import IntEnum


class Option(IntEnum):
    """Of ``malloc.h``. The first two are in bytes."""

    TRIM_THRESHOLD = -1
    MMAP_THRESHOLD = -3
    ARENA_MAX = -8


def set_malloc(values: Mapping[Option, int]) -> None:
    """Set options of this process. To be called before it has other threads."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in values.items():
            mallopt(int(option), value)
