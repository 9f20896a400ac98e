"""So much a minute. Pure."""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Final

_MINUTE_S: Final = 60.0
# Less than this is an error of rounding.
_NOTHING_S: Final = 1e-4


class Bucket:
    """A token bucket that holds one minute's worth and is full at first.

    A single cost above the whole minute's worth is taken when the bucket is full; what goes
    beyond is a debt that later ones wait for. So no request is refused for ever.

    Its state is one number, the time at which it will be full again (GCRA's theoretical arrival
    time), at ``index`` of ``cells``: several processes may share it without a lock, since a number
    that is lost when two write at once is one request's.
    """

    __slots__ = ("_cells", "_each_s", "_index", "per_min")

    def __init__(self, per_min: float, cells: MutableSequence[float], index: int) -> None:
        self._cells = cells
        self._index = index
        self.change(per_min)

    def change(self, per_min: float) -> None:
        """Another rate from now on. The share of a minute's worth that is used stays used."""
        self.per_min = per_min
        self._each_s = _MINUTE_S / per_min

    def level(self, now_s: float) -> float:
        """What may be taken now; below 0 is a debt."""
        return self.per_min - max(0.0, self._cells[self._index] - now_s) / self._each_s

    def wait_s(self, cost: float, now_s: float) -> float:
        """Seconds until ``cost`` may be taken: 0 if it may be now."""
        room_s = _MINUTE_S - min(cost * self._each_s, _MINUTE_S)
        wait_s = self._cells[self._index] - now_s - room_s
        return wait_s if wait_s > _NOTHING_S else 0.0

    def take(self, cost: float, now_s: float) -> None:
        """Take ``cost``, or give it back if it is below 0; never more than full."""
        self._cells[self._index] = max(self._cells[self._index], now_s) + cost * self._each_s
