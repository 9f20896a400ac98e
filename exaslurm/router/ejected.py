"""Replicas that are left alone, by when a request may try them again. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from exaslurm.router.breaker import Breaker

# Of those that are due, a request looks at so many for one that it can try: the time does not
# depend on how many there are.
_LOOKS: Final = 8


class Guarded(Protocol):
    """What has a breaker."""

    @property
    def breaker(self) -> Breaker: ...


G = TypeVar("G", bound=Guarded)


class Ejected(Generic[G]):
    """Those of one lane. ``heap``: when to look at each again, the first one first; besides, some
    that were said before and count no more."""

    __slots__ = ("_latest", "_serial", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, G]] = []
        self._latest: dict[G, int] = {}
        self._serial = 0

    def put(self, target: G, at_s: float) -> None:
        """Look at this one from then on, and not when was said before."""
        self._serial += 1
        self._latest[target] = self._serial
        heapq.heappush(self.heap, (at_s, self._serial, target))
        if len(self.heap) > 2 * len(self._latest) + _LOOKS:
            latest = self._latest
            self.heap[:] = [entry for entry in self.heap if latest.get(entry[2]) == entry[1]]
            heapq.heapify(self.heap)

    def discard(self, target: G) -> None:
        """This one is used again."""
        if self._latest.pop(target, None) is not None and not self._latest:
            self.heap.clear()

    def next_due(self, now_s: float, suits: Callable[[G], bool]) -> G | None:
        """One that may be tried now, by a request that it ``suits``. It is not here any more.

        One that does not suit is left to another request, and goes behind the others that are due:
        however many do not suit, each is looked at by one of the next requests.
        """
        heap = self.heap
        left: list[G] = []
        found: G | None = None
        for _ in range(_LOOKS):
            if not heap or heap[0][0] > now_s:
                break
            _, serial, target = heapq.heappop(heap)
            if self._latest.get(target) != serial:
                continue
            del self._latest[target]
            if not target.breaker.may_probe(now_s):
                # A request for another of its names tries it, or is to wait for longer.
                self.put(target, target.breaker.retry_at_s)
            elif suits(target):
                found = target
                break
            else:
                left.append(target)
        for target in left:
            self.put(target, now_s)
        return found
