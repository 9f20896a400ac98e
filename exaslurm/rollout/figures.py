"""What routers counted of the old and the new version, out of their ``/metrics``. Pure.

Counters only grow as long as a router lives. What each of them said last is kept, and what has come
on top is added up, so that neither a router that ends nor one that begins makes figures wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from exaslurm.core.rollout import Answers, Pair, Rollout, RolloutFigures
from exaslurm.registry.router_pages import samples
from exaslurm.rollout.judge import added, since

# Routers look at their shares once a second; requests of before take a while to end.
SETTLE_S = 10.0
# Fewer answers of the old version than these in one step say little: earlier steps count too.
ENOUGH_OLD = 100

Counts = Mapping[str, Mapping[str, Answers]]
"""By served name and version."""
Pairs = Mapping[str, Pair]


def parse(page: str) -> Counts:
    """The figures of every served name and version on a router's page; nothing of what it does not
    know a version of."""
    found: dict[tuple[str, str], _Parsed] = {}
    for family, labels, value in samples(page):
        name, version = labels.get("model", ""), labels.get("version", "")
        if version:
            found.setdefault((name, version), _Parsed()).take(family, labels, value)
    counts: dict[str, dict[str, Answers]] = {}
    for (name, version), parsed in found.items():
        counts.setdefault(name, {})[version] = parsed.answers()
    return counts


class _Parsed:
    """One version of one name, over all routes."""

    def __init__(self) -> None:
        self.requests = self.failed = self.refused = 0
        self.sums = {"first_byte_seconds": 0.0, "request_seconds": 0.0}
        # By upper bound, added up over routes: counts up to it, as Prometheus has them.
        self.buckets: dict[str, dict[float, int]] = {name: {} for name in self.sums}

    def take(self, family: str, labels: Mapping[str, str], value: float) -> None:
        if family == "requests_total":
            status = int(labels["status"]) if labels.get("status", "").isdigit() else 599
            self.requests += int(value)
            self.failed += int(value) if status >= 500 else 0
            self.refused += int(value) if 400 <= status < 499 else 0
        elif family == "broken_streams_total":
            self.failed += int(value)
        elif family == "failed_attempts_total":
            self.requests += int(value)
            self.failed += int(value)
        for name, bounds in self.buckets.items():
            if family == f"{name}_sum":
                self.sums[name] += value
            elif family == f"{name}_bucket":
                bound = float(labels["le"])
                bounds[bound] = bounds.get(bound, 0) + int(value)

    def answers(self) -> Answers:
        return Answers(
            requests=self.requests,
            failed=self.failed,
            refused=self.refused,
            first=self._counts("first_byte_seconds"),
            first_s=self.sums["first_byte_seconds"],
            whole=self._counts("request_seconds"),
            whole_s=self.sums["request_seconds"],
        )

    def _counts(self, name: str) -> tuple[int, ...]:
        running = [count for _, count in sorted(self.buckets[name].items())]
        return tuple(b - a for a, b in zip([0, *running], running, strict=False))


def pairs_of(counts: Counts, names: Mapping[str, tuple[str, str]]) -> dict[str, Pair]:
    """The old and the new version of each name. Names that mean the same two versions (a model and
    its shard) are one, by the shortest of them."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, versions in names.items():
        groups.setdefault(versions, []).append(name)
    found = {}
    for (old, new), members in groups.items():
        pair = Pair()
        for name in members:
            answers = counts.get(name, {})
            pair = Pair(
                old=added(pair.old, answers.get(old, Answers())),
                new=added(pair.new, answers.get(new, Answers())),
            )
        found[min(members, key=lambda name: (len(name), name))] = pair
    return found


def count(
    figures: RolloutFigures | None,
    rollout: Rollout,
    said: Mapping[str, Pairs],
    started_s: Mapping[str, float],
    silent: tuple[str, ...],
    now_s: float,
) -> RolloutFigures:
    """The figures with what routers say now (``said``, by router). ``started_s``: when each of them
    was started (Unix seconds); ``silent``: those that gave no answer."""
    figures = _of_this_step(figures, rollout)
    counted = dict(figures.counted)
    seen = dict(figures.seen)
    settled = now_s >= rollout.since_s + SETTLE_S
    for router, pairs in said.items():
        before = seen.get(router)
        if before is None and started_s.get(router, 0.0) > rollout.since_s:
            before = {}  # it began with this step: all that it has counted is of this step
        seen[router] = pairs
        if before is None or not settled:
            continue
        for name, pair in pairs.items():
            last, sum_ = before.get(name, Pair()), counted.get(name, Pair())
            counted[name] = Pair(
                old=added(sum_.old, since(pair.old, last.old)),
                new=added(sum_.new, since(pair.new, last.new)),
            )
    return replace(figures, seen=seen, counted=counted, silent=silent)


def _of_this_step(figures: RolloutFigures | None, rollout: Rollout) -> RolloutFigures:
    fresh = RolloutFigures(candidate=rollout.candidate, since_s=rollout.since_s)
    if figures is None or figures.candidate != rollout.candidate:
        return fresh
    if figures.since_s == rollout.since_s:
        return figures
    before = dict(figures.before)
    for name, pair in figures.counted.items():
        before[name] = added(before.get(name, Answers()), pair.old)
    return replace(fresh, before=before)


def to_compare(figures: RolloutFigures) -> dict[str, Pair]:
    """By name, what to judge by: where the old version has answered little in this step, failures
    are compared with those of the steps before. Times are not: what else happens on the machines
    makes both versions slow, at the same time."""
    found = {}
    for name, pair in figures.counted.items():
        old = pair.old
        if old.requests < ENOUGH_OLD and name in figures.before:
            before = figures.before[name]
            old = replace(
                old,
                requests=old.requests + before.requests,
                failed=old.failed + before.failed,
                refused=old.refused + before.refused,
            )
        found[name] = Pair(old=old, new=pair.new)
    return found
