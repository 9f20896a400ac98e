"""Whether a directory that is missing was removed, or its file system is only away."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

Finding = Literal["there", "removed", "away"]


class Presence:
    """One that is missing was removed only if the directory above it is still the one that held it:
    else its file system is not mounted, for however long, and that ends nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._above: tuple[int, int] | None = None

    def look(self) -> Finding:
        """Look now. OSError if it cannot be told."""
        above = _identity(self._path.parent)
        if _identity(self._path) is not None:
            self._above = above
            return "there"
        return "away" if above is None or above != self._above else "removed"


def _identity(path: Path) -> tuple[int, int] | None:
    """Which directory it is; None if there is none."""
    try:
        info = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return info.st_dev, info.st_ino
