"""So much a minute. Pure."""

from __future__ import annotations

_MINUTE_S = 60.0


class Bucket:
    """A token bucket that holds one minute's worth and is full at first.

    A single cost above the whole minute's worth is taken when the bucket is full; what goes
    beyond is a debt that later ones wait for. So no request is refused for ever.
    """

    __slots__ = ("_at_s", "_level", "per_min")

    def __init__(self, per_min: float, now_s: float) -> None:
        self.per_min = per_min
        self._level = per_min
        self._at_s = now_s

    def level(self, now_s: float) -> float:
        """What may be taken now; below 0 is a debt."""
        level = self._level
        if level < self.per_min:
            level += (now_s - self._at_s) * self.per_min / _MINUTE_S
            self._level = level = min(level, self.per_min)
        self._at_s = now_s
        return level

    def wait_s(self, cost: float, now_s: float) -> float:
        """Seconds until ``cost`` may be taken: 0 if it may be now."""
        lacking = min(cost, self.per_min) - self.level(now_s)
        return max(0.0, lacking * _MINUTE_S / self.per_min)

    def take(self, cost: float) -> None:
        """Take ``cost``, or give back if it is below 0; never more than full."""
        self._level = min(self._level - cost, self.per_min)

    def change(self, per_min: float, now_s: float) -> None:
        """Another rate from now on. What was used of the old one stays used."""
        used = self.per_min - self.level(now_s)
        self.per_min = per_min
        self._level = per_min - used
