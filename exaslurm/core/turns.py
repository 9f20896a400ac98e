"""The jobs of a cell, one after the other, and their names.

A cell outlives its jobs: the first one is named as the cell (``c000``), those that replace it
``c000.2``, ``c000.3``, and so on. Each such *turn* has files, a registry record and replica names
of its own, so that two of them can serve side by side while one takes over from the other.
"""

from __future__ import annotations

import re

_LATER = re.compile(r"(.+)\.([2-9]|[1-9][0-9]+)")


def cell_of(turn: str) -> str:
    """The cell that a turn belongs to."""
    match = _LATER.fullmatch(turn)
    return match[1] if match else turn


def number_of(turn: str) -> int:
    """Which turn of its cell it is, from 1."""
    match = _LATER.fullmatch(turn)
    return int(match[2]) if match else 1


def turn_of(cell: str, number: int) -> str:
    """The name of a cell's turn."""
    return cell if number == 1 else f"{cell}.{number}"
