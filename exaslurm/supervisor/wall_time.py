"""The time limit of a successor: shorter where a maintenance would keep it from starting."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Protocol

from exaslurm.core.plan import CellPlan, ComponentPlan
from exaslurm.errors import SlurmError
from exaslurm.slurm.reservations import Maintenance, first_in_the_way, parse_maintenance
from exaslurm.util.hostlist import expand

# Slurm plans with a little room before a reservation.
MARGIN_S = 120.0
# A job that is shorter than this is not worth its start: it waits until the maintenance is over.
LEAST_S = 900.0
_MINUTE_S = 60.0


class Asked(Protocol):
    """What is asked of Slurm here (see ``slurm.client.Slurm``)."""

    def query(self, argv: Sequence[str]) -> str: ...


def limit_s(text: str | None) -> float | None:
    """Slurm's ``[D-]HH:MM:SS``, ``MM:SS`` or minutes in seconds; None if there is no limit."""
    if text is None or text.lower() in ("unlimited", "infinite"):
        return None
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:  # D-HH[:MM[:SS]]
        hours, minutes, seconds = (*parts, 0, 0)[:3]
        return float((int(days) * 24 + hours) * 3600 + minutes * 60 + seconds)
    if len(parts) == 3:
        return float(parts[0] * 3600 + parts[1] * 60 + parts[2])
    return float(parts[0] * 60 + (parts[1] if len(parts) == 2 else 0))


def before_maintenance(
    cell: CellPlan, slurm: Asked, now_s: float
) -> tuple[CellPlan, Maintenance | None]:
    """The cell with a time limit that lets it run before the next maintenance, and which one that
    is; as it is where none is in the way, the time before it is too short, or Slurm does not
    tell."""
    limits = [limit_s(_directive(part, "time")) for part in cell.components]
    if any(limit is None for limit in limits):
        return cell, None
    longest_s = max(limit for limit in limits if limit is not None)
    try:
        reservations = slurm.query(["scontrol", "show", "reservation", "--oneliner"])
        maintenance = [m for m in parse_maintenance(reservations, expand) if m.end_s > now_s]
        if not any(item.start_s < now_s + longest_s for item in maintenance):
            return cell, None
        partitions = _partitions(slurm.query(["sinfo", "--noheader", "--Node", "--format=%N %R"]))
    except SlurmError:
        return cell, None
    until_s = now_s + longest_s + MARGIN_S
    in_the_way = [
        found
        for part in cell.components
        if (nodes := partitions.get(_directive(part, "partition") or ""))
        and (found := first_in_the_way(maintenance, nodes, part.nodes, until_s=until_s))
    ]
    if not in_the_way:
        return cell, None
    first = min(in_the_way, key=lambda item: item.start_s)
    left_s = first.start_s - now_s - MARGIN_S
    if left_s < LEAST_S:
        return cell, None
    minutes = str(math.floor(left_s / _MINUTE_S))
    components = tuple(_with_time(part, minutes) for part in cell.components)
    return dataclasses.replace(cell, components=components), first


def _directive(part: ComponentPlan, name: str) -> str | None:
    return dict(part.directives).get(name)


def _with_time(part: ComponentPlan, minutes: str) -> ComponentPlan:
    changed = tuple((n, minutes if n == "time" else value) for n, value in part.directives)
    return dataclasses.replace(part, directives=changed)


def _partitions(text: str) -> dict[str, frozenset[str]]:
    """Nodes of each partition, from lines of node and partition."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2:
            found.setdefault(words[1], set()).add(words[0])
    return {name: frozenset(nodes) for name, nodes in found.items()}
