"""Following a file that people edit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

from exaslurm.errors import ExaslurmError
from exaslurm.util.iothread import IoThread

log = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
_TIMEOUT_S = 30.0

T = TypeVar("T")
_Stamp = tuple[int, int, int] | None


async def changes(
    path: Path, files: IoThread, load: Callable[[Path], T]
) -> AsyncIterator[T | ExaslurmError]:
    """What ``load(path)`` returns each time that the file has changed, or why it cannot.

    A file is read when it has stayed as it is from one look to the next: until then somebody may
    be writing it.
    """
    known = seen = await _stamp(files, path)
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        before, seen = seen, await _stamp(files, path)
        if seen == known or seen != before:
            continue
        known = seen
        try:
            yield await files.run(load, path, timeout_s=_TIMEOUT_S)
        except ExaslurmError as error:
            yield error
        except Exception:  # this loop must not end: changes would never be seen
            log.exception("reading %s", path)


async def _stamp(files: IoThread, path: Path) -> _Stamp:
    """What changes when a file does; None if it cannot be looked at."""

    def look() -> _Stamp:
        try:
            info = path.stat()
        except OSError:
            return None
        return info.st_mtime_ns, info.st_size, info.st_ino

    try:
        return await files.run(look, timeout_s=_TIMEOUT_S)
    except ExaslurmError:
        return None
