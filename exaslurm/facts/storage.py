"""How long a small read from shared storage takes on this node.

A handful of reads of one file that is there anyway: a metadata server that a thousand nodes ask at
once is the thing that makes reads slow.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

READS = 5
_BYTES = 64 * 1024


def storage_read_ms(
    candidates: Sequence[Path],
    *,
    reads: int = READS,
    clock: Callable[[], float] = time.perf_counter,
) -> float | None:
    """Median of the milliseconds to open a file, read its first 64 KiB and close it, with the
    node's own copy dropped before each read where the file system lets one do that. The first of
    ``candidates`` that can be read is taken; None if none can."""
    for path in candidates:
        try:
            times = [_read_once(path, clock) for _ in range(reads)]
        except OSError:
            continue
        return round(statistics.median(times) * 1000, 3)
    return None


def _read_once(path: Path, clock: Callable[[], float]) -> float:
    began = clock()
    # Not a pipe, which would wait for a writer.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.read(fd, _BYTES)
        seconds = clock() - began
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        with contextlib.suppress(OSError):
            # For the next read: clean pages of this file leave the page cache.
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    return seconds
