"""The end of a log."""

from __future__ import annotations

from pathlib import Path


def tail(path: Path, max_bytes: int) -> str:
    """At most ``max_bytes`` from the end of a file, undecodable bytes replaced."""
    with open(path, "rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - max_bytes))
        return file.read().decode(errors="replace")
