"""Times that were counted in buckets. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

Counts = tuple[tuple[float, int], ...]
"""Upper bound of a bucket in seconds (the last one: infinite), and how many were counted in it; a
bound may come several times."""


def total(counts: Counts) -> int:
    """How many were counted."""
    return sum(count for _, count in counts)


def share_above(counts: Counts, limit_s: float) -> float:
    """Which part took longer; within a bucket times are taken as even."""
    many = total(counts)
    if not many:
        return 0.0
    above = 0.0
    for low_s, high_s, count in _ranges(counts):
        if low_s >= limit_s:
            above += count
        elif high_s > limit_s:
            width_s = high_s - low_s
            above += count if math.isinf(high_s) else count * (high_s - limit_s) / width_s
    return above / many


def percentile_s(counts: Counts, share: float) -> float:
    """The time that this share of them did not exceed; 0 without any, and of the last bucket its
    lower bound."""
    left = share * total(counts)
    if left <= 0:
        return 0.0
    last_s = 0.0
    for low_s, high_s, count in _ranges(counts):
        if count >= left:
            return low_s if math.isinf(high_s) else low_s + (high_s - low_s) * left / count
        left -= count
        last_s = high_s
    return last_s


def _ranges(counts: Counts) -> Iterable[tuple[float, float, int]]:
    """Lower and upper bound and count of each bucket, in order."""
    summed: dict[float, int] = {}
    for bound_s, count in counts:
        summed[bound_s] = summed.get(bound_s, 0) + count
    low_s = 0.0
    for bound_s in sorted(summed):
        yield low_s, bound_s, summed[bound_s]
        low_s = bound_s
