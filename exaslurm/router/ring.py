"""Consistent hashing: which engines a key belongs to, alike in every router process. Pure.

An engine that comes or goes moves the keys of its own points alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Generic, TypeVar

from xxhash import xxh3_64_intdigest

T = TypeVar("T")

_POINTS = 4  # Uneven arcs are evened out by the choice between several homes of a key.


class Ring(Generic[T]):
    """Points of engines on a circle of 64-bit numbers. A key belongs to the next point.

    ``items[bisect_right(points, key) - len(items)]`` is the home of a key (the hot path has this
    line for itself); both lists are empty without engines.
    """

    __slots__ = ("items", "points")

    def __init__(self) -> None:
        self.points: list[int] = []
        self.items: list[T] = []

    def add(self, name: str, item: T) -> None:
        """O(number of engines), but a few memory moves in truth."""
        for point in _points(name):
            index = bisect_right(self.points, point)
            self.points.insert(index, point)
            self.items.insert(index, item)

    def remove(self, name: str, item: T) -> None:
        """Nothing happens if ``item`` is not there."""
        for point in _points(name):
            index = bisect_left(self.points, point)
            while index < len(self.points) and self.points[index] == point:
                if self.items[index] is item:
                    del self.points[index], self.items[index]
                    break
                index += 1


def _points(name: str) -> list[int]:
    raw = name.encode("utf-8", "surrogateescape")
    return [xxh3_64_intdigest(raw, seed) for seed in range(_POINTS)]
