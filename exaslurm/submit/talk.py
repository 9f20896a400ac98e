"""Telling the user how it goes, a line at a time; the result is said elsewhere."""

from __future__ import annotations

from collections.abc import Callable

Talk = Callable[[str], None]


def quiet(line: str) -> None:
    """Say nothing."""
