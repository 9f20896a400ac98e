"""Whether something grows: the slope of samples of processes that come and go. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# A process that has started not long ago still fills what it keeps: caches, pools, its heap.
SETTLED_S = 240.0
# Two-sided 95 % of a normal distribution.
_Z = 1.96
# Samples follow each other: so many neighbours count as one.
_BLOCK = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at a process: ``at_s`` on any clock, ``age_s`` since its start."""

    process: str
    at_s: float
    age_s: float
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """Growth in the unit of the values an hour, with the bounds of a confidence of 95 %; ``mean``
    is that of the values, ``longest_s`` how long the longest-lived process was looked at."""

    per_h: float
    low_per_h: float
    high_per_h: float
    mean: float
    samples: int
    longest_s: float

    def grown(self, span_s: float) -> float:
        """What the growth would be in a time, at the least: above 0 if it is certain."""
        return max(0.0, self.low_per_h) * span_s / 3600.0


def slope(samples: Sequence[Sample], *, since_s: float) -> Slope | None:
    """The common slope within the processes: each has a level of its own, none is compared with
    another. Samples before ``since_s``, and those of processes that have just started, do not
    count. None where too few are left.

    Bounds are those of blocks of neighbours, since samples of one process depend on each other.
    """
    kept = [s for s in samples if s.at_s >= since_s and s.age_s >= SETTLED_S]
    by_process: dict[str, list[Sample]] = {}
    for sample in kept:
        by_process.setdefault(sample.process, []).append(sample)
    points: list[tuple[float, float]] = []
    longest_s = 0.0
    for found in by_process.values():
        found.sort(key=lambda sample: sample.at_s)
        blocks = _blocks(found)
        if len(blocks) < 2:
            continue
        longest_s = max(longest_s, found[-1].at_s - found[0].at_s)
        middle_s = sum(t for t, _ in blocks) / len(blocks)
        level = sum(y for _, y in blocks) / len(blocks)
        points += [(t - middle_s, y - level) for t, y in blocks]
    groups = sum(1 for found in by_process.values() if len(_blocks(found)) >= 2)
    spread = sum(t * t for t, _ in points)
    free = len(points) - groups - 1
    if free < 2 or spread == 0:
        return None
    per_s = sum(t * y for t, y in points) / spread
    rest = sum((y - per_s * t) ** 2 for t, y in points)
    error = math.sqrt(rest / free / spread)
    return Slope(
        per_h=3600 * per_s,
        low_per_h=3600 * (per_s - _Z * error),
        high_per_h=3600 * (per_s + _Z * error),
        mean=sum(s.value for s in kept) / len(kept),
        samples=len(kept),
        longest_s=longest_s,
    )


def _blocks(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    """Means of neighbours: time and value."""
    size = min(_BLOCK, max(1, len(samples) // 4))
    cut = [samples[at : at + size] for at in range(0, len(samples) - size + 1, size)]
    return [
        (sum(s.at_s for s in part) / len(part), sum(s.value for s in part) / len(part))
        for part in cut
    ]
