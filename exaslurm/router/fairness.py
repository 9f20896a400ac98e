"""Who is next of those who wait: the highest priority, and within it a fair share per key. Pure.

Start-time fair queueing: each key of a priority has a tag, the cost of what it got so far; the
lowest tag is next. A key with a thousand requests waiting and one with a single one get the same
share, measured in cost, not in requests. Costs are charged when a request leaves the queue, so
what is given up before costs nothing. All operations are O(log keys) or better.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Generic, TypeVar

W = TypeVar("W")

_FEW_LANES = 64


class Lane(Generic[W]):
    """What one key has waiting at one priority."""

    __slots__ = ("band", "owed", "queued", "tag", "waiting")

    def __init__(self, band: _Band[W], tag: float) -> None:
        self.band = band
        self.tag = tag
        self.owed = 0.0
        self.queued = False  # whether it is in the band's heap
        self.waiting: OrderedDict[W, float] = OrderedDict()

    def settle(self, difference: float) -> None:
        """A request of this lane cost so much more (or less) than it was charged for."""
        self.owed += difference


class _Band(Generic[W]):
    """The lanes of one priority. ``clock`` is the tag of the last one served."""

    __slots__ = ("clock", "heap", "lanes", "many_lanes", "priority", "serial", "size")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.clock = 0.0
        self.size = 0
        self.serial = 0
        self.lanes: dict[str, Lane[W]] = {}
        self.many_lanes = _FEW_LANES
        self.heap: list[tuple[float, int, Lane[W]]] = []

    def queue(self, lane: Lane[W]) -> None:
        self.serial += 1
        lane.queued = True
        heapq.heappush(self.heap, (lane.tag, self.serial, lane))

    def forget_idle(self) -> None:
        """Drop lanes that a new one would not differ from, each time they have doubled."""
        if len(self.lanes) >= self.many_lanes:
            self.lanes = {
                key: lane
                for key, lane in self.lanes.items()
                if lane.queued or lane.tag + lane.owed > self.clock
            }
            self.many_lanes = max(_FEW_LANES, 2 * len(self.lanes))


class FairQueue(Generic[W]):
    """Waiting things by priority (higher first) and key."""

    __slots__ = ("_bands", "size")

    def __init__(self) -> None:
        self._bands: dict[int, _Band[W]] = {}
        self.size = 0

    @property
    def top(self) -> int:
        """The highest priority that waits; ValueError if nothing does."""
        return max(self._bands)

    def put(self, thing: W, key: str, priority: int, cost: float) -> Lane[W]:
        """Add one; the lane is where it waits, for ``remove``."""
        band = self._bands.get(priority)
        if band is None:
            band = self._bands[priority] = _Band(priority)
        lane = band.lanes.get(key)
        if lane is None:
            band.forget_idle()
            lane = band.lanes[key] = Lane(band, band.clock)
        lane.waiting[thing] = cost
        if not lane.queued:
            lane.tag = max(lane.tag + lane.owed, band.clock)
            lane.owed = 0.0
            band.queue(lane)
        band.size += 1
        self.size += 1
        return lane

    def pop(self) -> W:
        """Take the next one; ValueError if nothing waits."""
        band = self._bands[self.top]
        while True:
            tag, _, lane = heapq.heappop(band.heap)
            lane.queued = False
            if lane.waiting:
                break
        thing, cost = lane.waiting.popitem(last=False)
        band.clock = tag
        cost += lane.owed
        lane.tag, lane.owed = (tag + cost, 0.0) if cost > 0 else (tag, cost)
        if lane.waiting:
            band.queue(lane)
        self._shrink(band)
        return thing

    def remove(self, thing: W, lane: Lane[W]) -> None:
        """Take out one that waits no longer."""
        del lane.waiting[thing]
        self._shrink(lane.band)

    def _shrink(self, band: _Band[W]) -> None:
        self.size -= 1
        band.size -= 1
        if not band.size:  # and with it what its keys owe: nobody is there to owe it to
            del self._bands[band.priority]
