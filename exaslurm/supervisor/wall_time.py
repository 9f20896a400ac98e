"""Time limits and maintenance: jobs that would run into one are made shorter, cells on nodes that
one takes get a successor before it. What is asked of Slurm apart, pure."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from exaslurm.core.plan import CellPlan, ComponentPlan
from exaslurm.errors import SlurmError
from exaslurm.slurm.parse import duration_s
from exaslurm.slurm.reservations import Maintenance, first_in_the_way, parse_maintenance
from exaslurm.util.hostlist import expand

# Slurm plans with a little room before a reservation.
MARGIN_S = 120.0
# A job that is shorter than this is not worth its start: it waits until the maintenance is over.
LEAST_S = 900.0
# Maintenance is announced days before.
ASK_EVERY_S = 60.0
_MINUTE_S = 60.0
_DEFAULT = ""


class Asked(Protocol):
    """What is asked of Slurm here (see ``slurm.client.Slurm``)."""

    def query(self, argv: Sequence[str]) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Calendar:
    """The maintenance that is to come, and the nodes of each partition (the default one's also
    under no name)."""

    maintenance: tuple[Maintenance, ...] = ()
    partitions: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def first(self, cell: CellPlan, until_s: float) -> Maintenance | None:
        """The first one that leaves too few nodes for a job of the cell that would run from now to
        ``until_s``."""
        found = [
            item
            for part, nodes in self._places(cell)
            if (item := first_in_the_way(self.maintenance, nodes, part.nodes, until_s=until_s))
        ]
        return min(found, key=lambda item: item.start_s) if found else None

    def taking(self, nodes: Sequence[str], until_s: float) -> Maintenance | None:
        """The first one that takes any of these nodes before ``until_s``."""
        for item in self.maintenance:
            if item.start_s < until_s and item.nodes & set(nodes):
                return item
        return None

    def _places(self, cell: CellPlan) -> Iterator[tuple[ComponentPlan, frozenset[str]]]:
        for part in cell.components:
            nodes = self.partitions.get(_directive(part, "partition") or _DEFAULT)
            if nodes:
                yield part, nodes


def ask_calendar(slurm: Asked, now_s: float) -> Calendar:
    """What Slurm says now. SlurmError."""
    text = slurm.query(["scontrol", "show", "reservation", "--oneliner"])
    coming = tuple(item for item in parse_maintenance(text, expand) if item.end_s > now_s)
    if not coming:
        return Calendar()
    nodes = slurm.query(["sinfo", "--noheader", "--Node", "--format=%N %P"])
    return Calendar(maintenance=coming, partitions=_partitions(nodes))


class CalendarWatch:
    """The calendar, asked for once a minute; without an answer, what it was."""

    def __init__(self, slurm: Asked, clock: Callable[[], float] = time.time) -> None:
        self._slurm = slurm
        self._clock = clock
        self._asked_s = -math.inf
        self._last = Calendar()

    def current(self) -> Calendar:
        """What is known of maintenance that is not over."""
        now_s = self._clock()
        if not 0 <= now_s - self._asked_s < ASK_EVERY_S:  # also where the clock was put back
            self._asked_s = now_s
            try:
                self._last = ask_calendar(self._slurm, now_s)
            except SlurmError:
                pass  # the same question is asked again in a minute
        return dataclasses.replace(
            self._last,
            maintenance=tuple(item for item in self._last.maintenance if item.end_s > now_s),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Relimited:
    """The time limit that a waiting job should have, and the maintenance that is the reason (None:
    the one that it was given)."""

    minutes: int
    maintenance: Maintenance | None


def relimited(
    cell: CellPlan,
    limits: Sequence[float | None],
    calendar: Calendar,
    now_s: float,
    *,
    is_shortened: bool = False,
) -> Relimited | None:
    """Which other limit a job that waits should have. ``limits`` are those of its components now,
    in seconds (None: no limit); ``is_shortened``: it was made shorter here. None: it is right as it
    is.

    Never longer than planned, nor so short that it is not worth its start: it gets its time back
    then, and waits until the maintenance is over.
    """
    planned_s = planned_limit_s(cell)
    longest_s = max((math.inf if limit is None else limit for limit in limits), default=0.0)
    if not limits:
        return None
    # What it would be if nothing were in the way; Slurm's own default where none is planned.
    whole_s = longest_s if planned_s is None else planned_s
    first = calendar.first(cell, now_s + whole_s)
    if first is not None:
        left_s = first.start_s - now_s - MARGIN_S
        if left_s >= LEAST_S:
            minutes = math.floor(left_s / _MINUTE_S)
            late = longest_s > first.start_s - now_s
            return Relimited(minutes=minutes, maintenance=first) if late else None
    if not is_shortened or planned_s is None or longest_s >= planned_s:
        return None
    return Relimited(minutes=math.ceil(planned_s / _MINUTE_S), maintenance=None)


def taken_by(
    cell: CellPlan, nodes: Sequence[str], calendar: Calendar, *, now_s: float, end_s: float | None
) -> Maintenance | None:
    """The maintenance before which a running job should have a successor: it takes nodes of the
    job before the job's end, and leaves enough others for the successor. ``end_s`` None: it has no
    end."""
    taking = calendar.taking(nodes, math.inf if end_s is None else end_s)
    if taking is None or taking.start_s <= now_s:
        return None
    planned_s = planned_limit_s(cell)
    until_s = math.inf if planned_s is None else now_s + planned_s + MARGIN_S
    return taking if calendar.first(cell, until_s) is None else None


def planned_limit_s(cell: CellPlan) -> float | None:
    """The longest time limit of the cell's components; None if one has none, or Slurm's own."""
    limits = [duration_s(_directive(part, "time") or "") for part in cell.components]
    if any(limit is None for limit in limits):
        return None
    return max((limit for limit in limits if limit is not None), default=None)


def before_maintenance(
    cell: CellPlan, slurm: Asked, now_s: float
) -> tuple[CellPlan, Maintenance | None]:
    """The cell with a time limit that lets it run before the next maintenance, and which one that
    is; as it is where none is in the way, the time before it is too short, or Slurm does not
    tell."""
    planned_s = planned_limit_s(cell)
    if planned_s is None:
        return cell, None
    try:
        calendar = ask_calendar(slurm, now_s)
    except SlurmError:
        return cell, None
    first = calendar.first(cell, now_s + planned_s + MARGIN_S)
    if first is None or first.start_s - now_s - MARGIN_S < LEAST_S:
        return cell, None
    minutes = str(math.floor((first.start_s - now_s - MARGIN_S) / _MINUTE_S))
    components = tuple(_with_time(part, minutes) for part in cell.components)
    return dataclasses.replace(cell, components=components), first


def _directive(part: ComponentPlan, name: str) -> str | None:
    return dict(part.directives).get(name)


def _with_time(part: ComponentPlan, minutes: str) -> ComponentPlan:
    changed = tuple((n, minutes if n == "time" else value) for n, value in part.directives)
    return dataclasses.replace(part, directives=changed)


def _partitions(text: str) -> dict[str, frozenset[str]]:
    """Nodes of each partition, from lines of node and partition (the default one with a star)."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2:
            node, name = words
            found.setdefault(name.removesuffix("*"), set()).add(node)
            if name.endswith("*"):
                found.setdefault(_DEFAULT, set()).add(node)
    return {name: frozenset(nodes) for name, nodes in found.items()}
