"""Is the new version worse than the old? Pure.

The question is asked again and again, and about several figures, so each single test is strict:
an equal version fails one of them in ten thousand. Nothing is said of small numbers, and nothing
of differences that are certain but too small to matter.

* Failures: Fisher's exact test, one-sided, on failed and good answers of both; and the share of
  failures higher by ``RolloutPolicy.failures``; and three of them at least.
* Time, until the first byte and for the whole answer: the rank-sum test of Mann and Whitney,
  one-sided, on the routers' buckets (normal approximation, corrected for ties); and the mean
  higher by the factor ``RolloutPolicy.slower``; and thirty answers of each at least. The mean alone
  could be one slow request, ranks alone the edge of a bucket.

Times are compared only while the cells of the new version have no more to do than those of the old.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from exaslurm.core.rollout import Answers, Pair, RolloutPolicy

# Chance that one test calls an equal version worse.
ALPHA = 1e-4
LEAST_FAILURES = 3
LEAST_TIMES = 30
# What a version is taken to fail of itself, where the old one has answered nothing to compare with.
USUAL_FAILURES = 0.01
# The normal quantile of 1 - ALPHA.
_QUANTILE = 3.719


def why_worse(name: str, pair: Pair, policy: RolloutPolicy, *, fair: bool) -> str | None:
    """Why the new version of ``name`` is worse, with the figures; None if that cannot be said.
    ``fair``: times may be compared."""
    old, new = pair.old, pair.new
    for what, bad in (("failed", "failed"), ("were refused (4xx)", "refused")):
        found = _more(getattr(old, bad), old.requests, getattr(new, bad), new.requests, policy)
        if found is not None:
            return f"{name}: {found} {what}"
    if not fair:
        return None
    for what, kind in (("the first byte", "first"), ("the whole answer", "whole")):
        slow = _slower(
            getattr(old, kind),
            getattr(old, f"{kind}_s"),
            getattr(new, kind),
            getattr(new, f"{kind}_s"),
            policy,
        )
        if slow is not None:
            return f"{name}: {what} takes {slow}"
    return None


def _more(bad0: int, all0: int, bad1: int, all1: int, policy: RolloutPolicy) -> str | None:
    if bad1 < LEAST_FAILURES or not all1:
        return None
    rate0 = bad0 / all0 if all0 else USUAL_FAILURES
    if bad1 / all1 - rate0 < policy.failures:
        return None
    chance = fisher(bad0, all0, bad1, all1) if all0 else binomial(bad1, all1, USUAL_FAILURES)
    if chance >= ALPHA:
        return None
    before = f"{bad0} of {all0} of the old one" if all0 else "nothing of the old one is known"
    return f"{bad1} of {all1} requests to the new version ({before})"


def _slower(
    times0: Sequence[int],
    sum0_s: float,
    times1: Sequence[int],
    sum1_s: float,
    policy: RolloutPolicy,
) -> str | None:
    count0, count1 = sum(times0), sum(times1)
    if min(count0, count1) < LEAST_TIMES:
        return None
    mean0_s, mean1_s = sum0_s / count0, sum1_s / count1
    if mean0_s <= 0 or mean1_s < policy.slower * mean0_s or rank_sum(times0, times1) < _QUANTILE:
        return None
    return (
        f"{mean1_s:.3g} s with the new version and {mean0_s:.3g} s with the old "
        f"(means of {count1} and {count0} answers)"
    )


def fisher(bad0: int, all0: int, bad1: int, all1: int) -> float:
    """The chance of ``bad1`` or more failures among ``all1``, if all ``bad0 + bad1`` fell by chance
    on ``all0 + all1``."""
    total, bad = all0 + all1, bad0 + bad1
    most = min(bad, all1)
    return min(1.0, sum(_drawn(k, all1, bad, total) for k in range(bad1, most + 1)))


def _drawn(k: int, drawn: int, bad: int, total: int) -> float:
    """The chance of exactly ``k`` of ``bad`` among ``drawn`` of ``total``."""
    if not max(0, drawn - (total - bad)) <= k <= min(bad, drawn):
        return 0.0
    return math.exp(
        _log_choose(bad, k) + _log_choose(total - bad, drawn - k) - _log_choose(total, drawn)
    )


def binomial(bad: int, count: int, rate: float) -> float:
    """The chance of ``bad`` or more of ``count``, each with the chance ``rate``."""
    fewer = sum(
        math.exp(_log_choose(count, k) + k * math.log(rate) + (count - k) * math.log1p(-rate))
        for k in range(bad)
    )
    return max(0.0, 1.0 - fewer)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def rank_sum(times0: Sequence[int], times1: Sequence[int]) -> float:
    """By how many standard deviations the second sample's ranks are higher than those of two equal
    ones. Both are counts by the same buckets, in their order."""
    count0, count1 = sum(times0), sum(times1)
    total = count0 + count1
    below, higher, ties = 0, 0.0, 0.0
    for some0, some1 in zip(times0, times1, strict=True):
        higher += some1 * (below + some0 / 2)
        below += some0
        tied = some0 + some1
        ties += tied**3 - tied
    variance = count0 * count1 / 12 * (total + 1 - ties / (total * (total - 1)))
    return (higher - count0 * count1 / 2) / math.sqrt(variance) if variance > 0 else 0.0


def is_fair(share_percent: float, new_cells: int, old_cells: int) -> bool:
    """Whether a cell of the new version has no more to do than one of the old (a quarter more is
    no matter): only then does it say something that it is slower."""
    if not new_cells or not old_cells:
        return False
    return share_percent / new_cells <= 1.25 * (100.0 - share_percent) / old_cells


def added(one: Answers, other: Answers) -> Answers:
    """The sum of both."""
    return Answers(
        requests=one.requests + other.requests,
        failed=one.failed + other.failed,
        refused=one.refused + other.refused,
        first=_sum(one.first, other.first),
        first_s=one.first_s + other.first_s,
        whole=_sum(one.whole, other.whole),
        whole_s=one.whole_s + other.whole_s,
    )


def since(now: Answers, before: Answers) -> Answers:
    """What has come on top. Counters that have fallen began anew: then all of it has."""
    pairs = [
        (now.requests, before.requests),
        (now.failed, before.failed),
        (now.refused, before.refused),
        (sum(now.first), sum(before.first)),
        (sum(now.whole), sum(before.whole)),
    ]
    if any(new < old for new, old in pairs):
        return now
    return Answers(
        requests=now.requests - before.requests,
        failed=now.failed - before.failed,
        refused=now.refused - before.refused,
        first=_sum(now.first, before.first, -1),
        first_s=max(0.0, now.first_s - before.first_s),
        whole=_sum(now.whole, before.whole, -1),
        whole_s=max(0.0, now.whole_s - before.whole_s),
    )


def _sum(one: Sequence[int], other: Sequence[int], sign: int = 1) -> tuple[int, ...]:
    if not one or not other:
        return tuple(one) or tuple(sign * count for count in other)
    return tuple(a + sign * b for a, b in zip(one, other, strict=True))
