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
_Stamp = dict[Path, tuple[int, ...] | None] | None


async def changes(
    path: Path,
    files: IoThread,
    load: Callable[[Path], T],
    others: Callable[[], Sequence[Path]] = tuple,
) -> AsyncIterator[T | ExaslurmError]:
    """What ``load(path)`` returns, soon and each time that the file or one of the ``others`` (which
    it names) has changed, or why it cannot, which may pass: then it is read again at each look.

    They are read when they have stayed as they are from one look to the next: until then somebody
    may be writing them. What was read before this began may have changed since.
    """
    known: _Stamp = None
    seen: _Stamp = None
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


async def _stamp(files: IoThread, paths: Sequence[Path]) -> _Stamp:
    """What changes when one of the files does; None if they cannot be looked at."""
    try:
        return await files.run(lambda: {path: _look(path) for path in paths}, timeout_s=_TIMEOUT_S)
    except ExaslurmError:
        return None


def _look(path: Path) -> tuple[int, ...] | None:
    try:
        info = path.stat()
    except OSError:
        return None
    # The mode, too: a key file that others can read is of no use until that is mended.
    return info.st_mtime_ns, info.st_size, info.st_ino, info.st_mode
