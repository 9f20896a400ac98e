"""How a replica leaves its place without an error to anybody. Pure: the caller brings the time.

First routers are told that it drains, and the engine goes on: what is on its way to it is answered.
When all routers know, the engine is no longer wanted: its agent ends it, and it finishes what it
has begun within the drain time. When nothing of it is left on any of its nodes, the place is free.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from exaslurm.core.cell import AgentReport, DesiredState

# Routers ask a cell every second, and read its record every 2 s where its head does not answer.
LEARN_S = 4.0

# ``move``: it is started anew, elsewhere if another node has room. ``yield``: it stays down until a
# node has memory for it. ``go``: it is not wanted any more.
Then = Literal["move", "yield", "go"]


@dataclass(slots=True, kw_only=True)
class Leaving:
    """A replica on its way out. ``nodes`` are those that it leaves, ``since_s`` is when routers
    could begin to know (monotonic seconds). ``over``: nothing of it is left there."""

    reason: str
    nodes: tuple[str, ...]
    since_s: float
    then: Then = "move"
    over: bool = False
    gone: set[str] = field(default_factory=set)

    def is_unwanted(self, now: float) -> bool:
        """Whether its engine shall end now: nothing new is on its way to it."""
        return now - self.since_s >= LEARN_S

    def look(self, now: float, joined: Collection[str]) -> bool:
        """Whether nothing of it is left on any node that answers."""
        left = (set(self.nodes) & set(joined)) - self.gone
        self.over = self.over or (self.is_unwanted(now) and not left)
        return self.over

    def on_report(self, replica: str, report: AgentReport, desired: DesiredState) -> None:
        """What a node says, of which ``desired`` is what it shall run: has the engine ended?"""
        if report.node not in self.nodes or report.seen_version < desired.version:
            return
        wanted = any(place.id == replica for place in desired.engines)
        there = any(status.replica == replica for status in report.engines)
        if not wanted and not there:
            self.gone.add(report.node)
