"""Following a file that people edit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from exaslurm.errors import ExaslurmError
from exaslurm.util.iothread import IoThread

log = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
_TIMEOUT_S = 30.0

T = TypeVar("T")
Looks = dict[Path, tuple[int, ...] | None]
"""How files look from outside: other than before if they have changed."""


async def changes(
    path: Path,
    files: IoThread,
    load: Callable[[Path], T],
    others: Callable[[], Sequence[Path]] = tuple,
    *,
    known: Looks | None = None,
) -> AsyncIterator[T | ExaslurmError]:
    """What ``load(path)`` returns each time that the file or one of the ``others`` (which it names)
    has changed, or why it cannot, which may pass: then it is read again at each look. ``known``:
    how they looked when they were read before this began.

    They are read when they have stayed as they are from one look to the next: until then somebody
    may be writing them.
    """
    seen: Looks | None = None
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        before, seen = seen, await _stamp(files, (path, *others()))
        if seen is None or seen == known or seen != before:
            continue
        known = None
        try:
            fresh = await files.run(load, path, timeout_s=_TIMEOUT_S)
            known = seen
            yield fresh
        except ExaslurmError as error:
            yield error
        except Exception:  # this loop must not end: changes would never be seen
            log.exception("reading %s", path)


async def _stamp(files: IoThread, paths: Sequence[Path]) -> Looks | None:
    """None if they cannot be looked at."""
    try:
        return await files.run(lambda: {path: look(path) for path in paths}, timeout_s=_TIMEOUT_S)
    except ExaslurmError:
        return None


def look(path: Path) -> tuple[int, ...] | None:
    """None: it is not there, or not for us."""
    try:
        info = path.stat()
    except OSError:
        return None
    # The mode, too: a key file that others can read is of no use until that is mended.
    return info.st_mtime_ns, info.st_size, info.st_ino, info.st_mode
