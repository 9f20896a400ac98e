"""What a load noticed of a fault, as figures. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from exaslurm.chaos.asked import FAILURES, Asked, Class, classify

SHARE = 0.985
WINDOW_S = 1.0
# Shorter silence is the pace of the streams.
GAP_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """``failed`` by class; ``retried``: sent to another replica by the router (None: it was not to
    be learned), ``reconnected``: by the client, once each. ``longest_gap_s``: the longest time
    after the fault in which requests waited and no byte came to any of them. ``to_success_s``:
    from when on 98.5 % of what ended in any second was answered (None: never); ``samples``: what
    the first failures said."""

    sent: int
    ok: int
    failed: dict[str, int]
    reconnected: int
    retried: int | None
    longest_gap_s: float
    to_success_s: float | None
    waited_s: float
    samples: tuple[str, ...] = ()
    replicas: dict[str, int] = field(default_factory=dict)


def figures(
    asked: Sequence[Asked],
    silences: Sequence[tuple[float, float]],
    fault_s: float,
    *,
    router_died: bool = False,
    retried: int | None = None,
) -> Figures:
    """The figures of requests that have all ended; ``silences`` are times (from, to) in which
    something was waited for and nothing came."""
    classes = [
        classify(item, router_died=router_died and item.ended_s >= fault_s) for item in asked
    ]
    failures = [(item, found) for item, found in zip(asked, classes, strict=True) if found != "ok"]
    after = [item for item in asked if item.ended_s >= fault_s]
    waiting = [item for item in after if item.asked_s < fault_s and not item.stream]
    served: dict[str, int] = {}
    for item in after:
        if item.replica:
            served[item.replica] = served.get(item.replica, 0) + 1
    return Figures(
        sent=len(asked),
        ok=classes.count("ok"),
        failed={name: classes.count(name) for name in FAILURES},
        reconnected=sum(item.reconnected for item in asked),
        retried=retried,
        longest_gap_s=round(longest_gap(silences, fault_s), 3),
        to_success_s=time_to_success(
            [(item.ended_s, found == "ok") for item, found in zip(asked, classes, strict=True)],
            silences,
            fault_s,
        ),
        waited_s=round(max((item.ended_s - fault_s for item in waiting), default=0.0), 3),
        samples=tuple(_words(item, found, fault_s) for item, found in failures[:5]),
        replicas=dict(sorted(served.items())),
    )


def longest_gap(silences: Sequence[tuple[float, float]], fault_s: float) -> float:
    """The longest silence that lasted beyond the fault, in seconds."""
    return max((end - max(begin, fault_s) for begin, end in silences if end > fault_s), default=0.0)


def time_to_success(
    ends: Sequence[tuple[float, bool]],
    silences: Sequence[tuple[float, float]],
    fault_s: float,
) -> float | None:
    """Seconds from the fault until, in every second from then on, 98.5 % of the requests that
    ended were answered; a second of nothing but silence does not count as success. None if that
    never came: nothing was answered any more."""
    after = sorted((end - fault_s, good) for end, good in ends if end >= fault_s)
    if not after:
        return None
    quiet = [
        (max(0.0, begin - fault_s), end - fault_s)
        for begin, end in silences
        if end - max(begin, fault_s) >= WINDOW_S
    ]
    # Just after an end, or after a silence, is where a window can begin to be good.
    begins = sorted({0.0, *(end for end, _ in after), *(end for _, end in quiet)})
    last_bad = -1
    low = high = failures = 0
    for index, begin in enumerate(begins):
        # The window is (begin, begin + 1], but the one at 0 has what ends at 0, too.
        while low < len(after) and after[low][0] <= begin and begin > 0:
            failures -= (not after[low][1]) if low < high else 0
            low += 1
        high = max(high, low)
        while high < len(after) and after[high][0] <= begin + WINDOW_S:
            failures += not after[high][1]
            high += 1
        count = high - low
        silent = any(start <= begin and begin + WINDOW_S <= end for start, end in quiet)
        if silent or (count and count - failures < SHARE * count):
            last_bad = index
    since_s = begins[last_bad + 1] if last_bad + 1 < len(begins) else after[-1][0]
    answered = any(good for end, good in after if end > since_s or last_bad < 0)
    return round(since_s, 3) if answered else None


def _words(item: Asked, found: Class, fault_s: float) -> str:
    kind = "stream" if item.stream else "plain"
    where = f" at {item.replica}" if item.replica else ""
    said = f": {item.said}" if item.said else ""
    return f"{item.ended_s - fault_s:+.2f} s {found} {kind} {item.status}{where}{said}"
