"""Which replica gives way where a node is short of memory. Pure: the caller brings the time.

The kernel, once there is no memory left, kills the largest process, whoever needs it. So before
that the least important replica of the node leaves it, drained, and the others go on. A node is
short when for ``LASTING_S`` less than a twentieth of what the job may use is free, or less than a
seventh while tasks wait for memory (PSI) a tenth of the time. A replica may come (back) to a node
that has not been short for ``CALM_S``, if an eighth is left free beside it; the time doubles with
every return that did not last. A GPU is short like a host, but only where several replicas use it:
an engine takes nearly all of its own.

Who gives way: the lowest priority of its shard; of equals first one whose shard has others that
serve, then the one with fewest requests, then the largest. Nobody does whose shard would end for
the sake of equals, and so never the last replica of the highest priority.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exaslurm.core.cell import MemoryFigures

SHORT_SHARE = 0.95
STALLED_SHARE, STALLED_PCT = 0.86, 10.0
ROOM_SHARE = 0.875
LASTING_S = 10.0
CALM_S, MOST_CALM_S = 60.0, 3600.0
# After one has left it takes a few reports until its memory is seen to be free.
SETTLE_S = 30.0
HOST = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """``what``: ``memory`` of the host, or the visible id of a GPU."""

    node: str
    what: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A replica that uses what is short. ``busy`` are its requests, ``alone``: no other replica of
    its shard serves."""

    replica: str
    priority: int
    busy: int
    size_mib: int
    alone: bool


def who_gives_way(candidates: Sequence[Candidate]) -> Candidate | None:
    """One of those that use what is short; None if nobody should."""
    if len(candidates) < 2:
        return None  # its end would help nobody else
    first = min(candidates, key=lambda c: (c.priority, c.alone, c.busy, -c.size_mib, c.replica))
    highest = max(candidate.priority for candidate in candidates)
    return None if first.alone and first.priority == highest else first


@dataclass(slots=True)
class _Node:
    figures: MemoryFigures
    seen_s: float
    short_since_s: dict[str, float]
    last_short_s: float | None = None
    relieved_s: float = -SETTLE_S


class Pressure:
    """What nodes have said of their memory."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}

    def on_report(self, node: str, figures: MemoryFigures | None, now: float) -> None:
        """Take a report; None: nothing is known any more."""
        if figures is None:
            self._nodes.pop(node, None)
            return
        known = self._nodes.setdefault(node, _Node(figures, now, {}))
        known.figures, known.seen_s = figures, now
        short = _short(figures)
        known.short_since_s = {what: known.short_since_s.get(what, now) for what in short}
        if HOST in short:
            known.last_short_s = now

    def shortages(self, now: float) -> list[Shortage]:
        """What is short for long enough, and for which nobody has given way just now."""
        return [
            Shortage(node=name, what=what, sentence=_sentence(name, what, node.figures))
            for name, node in self._nodes.items()
            for what, since_s in node.short_since_s.items()
            if node.seen_s - since_s >= LASTING_S
            and now - node.seen_s <= LASTING_S  # a silent node has other troubles
            and now - node.relieved_s >= SETTLE_S
        ]

    def relieved(self, node: str, now: float) -> None:
        """A replica has left there for the sake of memory: see first what comes of it."""
        if node in self._nodes:
            self._nodes[node].relieved_s = now

    def is_short(self, node: str) -> bool:
        """Whether nothing should be started there."""
        known = self._nodes.get(node)
        return known is not None and HOST in known.short_since_s

    def has_room(self, node: str, size_mib: int, calm_s: float, now: float) -> bool:
        """Whether a replica of that size may come (back) to the node."""
        known = self._nodes.get(node)
        if known is None:
            return True  # nobody knows
        if known.figures.used_mib + size_mib > ROOM_SHARE * known.figures.limit_mib:
            return False
        return known.last_short_s is None or now - known.last_short_s >= calm_s

    def calm_s(self, returns: int) -> float:
        """How long a node must be calm for a replica that has come back so often in vain."""
        return float(min(CALM_S * 2 ** min(returns, 10), MOST_CALM_S))


def _short(figures: MemoryFigures) -> list[str]:
    share = figures.used_mib / max(1, figures.limit_mib)
    stalled = figures.stalled_pct is not None and figures.stalled_pct >= STALLED_PCT
    short = [HOST] if share >= SHORT_SHARE or (stalled and share >= STALLED_SHARE) else []
    return short + [
        gpu.visible_id
        for gpu in figures.gpus
        if gpu.used_mib >= SHORT_SHARE * max(1, gpu.limit_mib)
    ]


def _sentence(node: str, what: str, figures: MemoryFigures) -> str:
    if what != HOST:
        gpu = next(gpu for gpu in figures.gpus if gpu.visible_id == what)
        return (
            f"GPU {what} of {node} is short of memory ({gpu.used_mib} of {gpu.limit_mib} MiB used)"
        )
    used, limit = figures.used_mib / 1024, figures.limit_mib / 1024
    bound = "" if figures.bound == "node" else f", limit of cgroup {figures.bound}"
    return f"{node} is short of memory ({used:.1f} of {limit:.1f} GiB used{bound})"
