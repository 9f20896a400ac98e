"""How many replicas of one shard are wanted. Pure: the caller brings the figures and the time.

More are wanted at once: when requests take more than ``up_at`` of the capacity, or more than one
first token in twenty comes later than promised. What a growing load will have come to by the time
that a new replica serves counts too. While new replicas start, at most twice as many are wanted as
serve, and when they serve, what has queued up before them is not held against them.

Fewer are wanted only when nothing was changed for ``cooldown_s`` and, over all of that time, those
that stay would have had less to do than the middle between both thresholds, and would have kept
the promise with room to spare. So a step down is not the reason for a step up, and a load that
comes and goes faster than ``cooldown_s`` is met by holding what its peaks need.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from exaslurm.autoscale.latency import Counts, percentile_s, share_above, total

PERCENTILE = 0.95
# Fewer first tokens than this say nothing about a 95th percentile.
LEAST_TOKENS = 20
# Of the time that is promised; fewer replicas have to stay below it.
ROOM = 0.8
# One step up: at most so many times as many, and where tokens are late at least so many: they say
# that there are too few, not how many are missing. One step down: to this share at least.
MOST_FACTOR, LATE_FACTOR, DOWN_FACTOR = 2.0, 1.125, 0.75
# How long figures are averaged over.
RECENT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What holds for a shard. ``least`` is for a shard that somebody uses: with ``idle_s`` it has
    none after so many seconds without a request (None: never). ``ttft_p95_s``: what is promised
    (None: nothing). ``capacity``: the requests that one replica works on at a time."""

    least: int
    most: int
    up_at: float
    down_at: float
    cooldown_s: float
    capacity: float
    idle_s: float | None = None
    ttft_p95_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """A shard at one moment. Times are seconds that only grow.

    ``ready``: replicas that take requests. ``in_flight``: requests at engines and before them, on
    average since the signals before. ``kv_use``: how full engines' caches are, on average (0..1).
    ``first_tokens``: how long the first tokens took that came since the signals before. ``asked``:
    whether there was any request. ``bring_up_s``: what a new replica takes until it serves.
    """

    now_s: float
    ready: int
    in_flight: float
    kv_use: float = 0.0
    first_tokens: Counts = ()
    asked: bool = False
    bring_up_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What signals have said. ``demand``: the replicas that there was work for."""

    now_s: float
    ready: int
    demand: float
    first_tokens: Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What the policy remembers of a shard. ``wanted``: what it said last, at ``changed_s`` and
    for that ``reason``; ``settled_s``: since when as many serve; ``used_s``: when somebody last
    asked for it."""

    wanted: int
    changed_s: float
    used_s: float
    settled_s: float | None = None
    reason: str = ""
    past: tuple[Moment, ...] = field(default=(), repr=False)


def begin(wanted: int, now_s: float) -> State:
    """The state of a shard of which nothing is known yet."""
    return State(wanted=wanted, changed_s=now_s, used_s=now_s)


def step(state: State, signals: Signals, rules: Rules) -> State:
    """The state after these signals; its ``wanted`` is what shall be."""
    now_s = signals.now_s
    state = _remembered(state, signals, rules)
    if signals.asked or signals.in_flight > 0:
        state = replace(state, used_s=now_s)
    wanted, reason = _wanted(state, signals, rules)
    return state if wanted == state.wanted else told(state, wanted, reason, now_s)


def told(state: State, wanted: int, reason: str, now_s: float) -> State:
    """The state after somebody has said how many there shall be."""
    return replace(state, wanted=wanted, changed_s=now_s, settled_s=None, reason=reason)


def _remembered(state: State, signals: Signals, rules: Rules) -> State:
    """With these signals among the past ones, and without those that say nothing any more."""
    now_s = signals.now_s
    settled_s = state.settled_s
    if settled_s is None and signals.ready >= state.wanted:
        settled_s = now_s
    mine = Moment(
        now_s=now_s,
        ready=signals.ready,
        demand=max(signals.in_flight / rules.capacity, signals.kv_use * signals.ready),
        first_tokens=signals.first_tokens,
    )
    since_s = now_s - max(rules.cooldown_s, 3 * _window_s(signals))
    past = (*(moment for moment in state.past if moment.now_s > since_s), mine)
    return replace(state, settled_s=settled_s, past=past)


def _wanted(state: State, signals: Signals, rules: Rules) -> tuple[int, str]:
    now_s, wanted, least = signals.now_s, state.wanted, rules.least
    if rules.idle_s is not None:
        least = max(1, least)
        idle_s = now_s - state.used_s
        if wanted == 0 and idle_s > 0:
            return 0, ""
        if wanted > 0 and idle_s >= rules.idle_s:
            return 0, f"nobody has asked for it for {idle_s:.0f} s"
    if wanted == 0:
        needed = math.ceil(signals.in_flight / rules.capacity / rules.up_at)
        return _within(max(1, needed), least, rules.most), "somebody asks for it"
    if not least <= wanted <= rules.most:
        bound = f"at least {least}" if wanted < least else f"at most {rules.most}"
        return _within(wanted, least, rules.most), bound
    more, reason = _more(state, signals, rules)
    if more > wanted:
        return min(more, rules.most), reason
    fewer, reason = _fewer(state, signals, rules)
    return max(fewer, least), reason


def _more(state: State, signals: Signals, rules: Rules) -> tuple[int, str]:
    """How many would be enough for what there is to do now, and soon."""
    now_s, wanted = signals.now_s, state.wanted
    most = math.ceil(MOST_FACTOR * max(1, signals.ready))
    if state.settled_s is not None and now_s - state.settled_s < RECENT_S:
        return wanted, ""
    demand = _mean(state.past, now_s - RECENT_S, now_s)
    soon = max(demand, _ahead(state.past, signals))
    needed = min(most, math.ceil(soon / rules.up_at - 1e-9))
    if needed > wanted:
        grows = f", and soon {soon / wanted:.0%}" if soon > 1.1 * demand else ""
        return needed, f"{demand / wanted:.0%} of the capacity is in use{grows}"
    if rules.ttft_p95_s is None or state.settled_s is None:
        return wanted, ""
    late = _late(state.past, state.settled_s + RECENT_S, rules.ttft_p95_s)
    if late <= 1 - PERCENTILE:
        return wanted, ""
    return math.ceil(
        LATE_FACTOR * wanted
    ), f"{late:.0%} of first tokens came later than {rules.ttft_p95_s:g} s"


def _fewer(state: State, signals: Signals, rules: Rules) -> tuple[int, str]:
    """How few would have been enough all the time; as many as now where that is not known."""
    now_s, wanted = signals.now_s, state.wanted
    if state.settled_s is None or now_s - state.changed_s < rules.cooldown_s:
        return wanted, ""
    since_s = now_s - rules.cooldown_s
    demand = _most(state.past, since_s)
    if demand >= rules.down_at * wanted:
        return wanted, ""
    needed = math.ceil(2 * demand / (rules.up_at + rules.down_at) - 1e-9)
    counts = _tokens(state.past, since_s)
    if rules.ttft_p95_s is not None and total(counts) >= LEAST_TOKENS:
        # What queues up takes the longer the fewer work on it.
        room_s = ROOM * rules.ttft_p95_s
        needed = max(needed, math.ceil(wanted * percentile_s(counts, PERCENTILE) / room_s - 1e-9))
    needed = min(wanted, max(needed, math.floor(wanted * DOWN_FACTOR)))
    return needed, f"{demand / wanted:.0%} of the capacity was in use for {rules.cooldown_s:g} s"


def _window_s(signals: Signals) -> float:
    """Over how long it is looked at whether the load grows."""
    return max(RECENT_S, signals.bring_up_s)


def _ahead(past: Sequence[Moment], signals: Signals) -> float:
    """What the load will have come to when a replica that is started now serves, if it goes on
    growing as it did for twice as long; 0 where that is not known. A burst is no growth."""
    now_s, window_s = signals.now_s, _window_s(signals)
    if not past or past[0].now_s > now_s - 2.5 * window_s:
        return 0.0
    first, middle, last = (
        _mean(past, now_s - ago * window_s, now_s - (ago - 1) * window_s) for ago in (3, 2, 1)
    )
    # The mean of the last window is what there was in the middle of it.
    return last + 1.5 * max(0.0, min(last - middle, middle - first))


def _mean(past: Sequence[Moment], after_s: float, until_s: float) -> float:
    found = [moment.demand for moment in past if after_s < moment.now_s <= until_s]
    return sum(found) / len(found) if found else 0.0


def _most(past: Sequence[Moment], since_s: float) -> float:
    """The most that there was to do since then, over ``RECENT_S`` each."""
    since = [moment for moment in past if moment.now_s > since_s]
    return max((_mean(since, m.now_s - RECENT_S, m.now_s) for m in since), default=0.0)


def _late(past: Sequence[Moment], since_s: float, promised_s: float) -> float:
    """Which part of the first tokens came late; 0 as long as too few have come, or all that were
    late came in one burst."""
    counts = _tokens(past, since_s)
    if total(counts) < LEAST_TOKENS:
        return 0.0
    when_s = [
        m.now_s for m in past if m.now_s > since_s and share_above(m.first_tokens, promised_s) > 0
    ]
    if not when_s or when_s[-1] - when_s[0] < RECENT_S:
        return 0.0
    return share_above(counts, promised_s)


def _tokens(past: Sequence[Moment], since_s: float) -> Counts:
    return tuple(count for m in past if m.now_s > since_s for count in m.first_tokens)


def _within(value: int, least: int, most: int) -> int:
    return max(least, min(value, most))


def _between(value: float, least: float, most: float) -> float:
    return max(least, min(value, most))
