"""Checks in the order in which they are due."""

from __future__ import annotations

import heapq
import itertools

from exaslurm.registry.watched import Watched


class Lane:
    """Checks that are due, the earliest first; a bounded number is under way."""

    def __init__(self, at_once: int) -> None:
        self.free = at_once
        self._heap: list[tuple[float, int, Watched]] = []
        self._order = itertools.count()

    def add(self, watched: Watched, due_s: float) -> None:
        watched.due_s = due_s
        heapq.heappush(self._heap, (due_s, next(self._order), watched))

    def next_due_s(self) -> float | None:
        """When the next check can start; None if none can."""
        return self._heap[0][0] if self._heap and self.free else None

    def pop_due(self, now_s: float) -> Watched | None:
        while self._heap and self.free and self._heap[0][0] <= now_s:
            due_s, _, watched = heapq.heappop(self._heap)
            if watched.due_s == due_s and not watched.checking:  # else it is asked otherwise
                return watched
        return None
