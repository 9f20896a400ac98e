"""Maintenance reservations, as ``scontrol show reservation`` tells them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from exaslurm.slurm.parse import unix_time

Expand = Callable[[str], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance:
    """A time in which nodes start no jobs. Times are Unix seconds."""

    name: str
    start_s: float
    end_s: float
    nodes: frozenset[str]


def parse_maintenance(text: str, expand: Expand) -> tuple[Maintenance, ...]:
    """From ``scontrol show reservation --oneliner``: those with the flag MAINT, earliest first;
    one whose times or nodes are not understood is left out."""
    found = []
    for line in text.splitlines():
        words = dict(re.findall(r"(\w+)=(\S*)", line))
        flags = words.get("Flags", "").split(",")
        start_s, end_s = (unix_time(words.get(key, "")) for key in ("StartTime", "EndTime"))
        if "MAINT" not in flags or start_s is None or end_s is None:
            continue
        try:
            nodes = frozenset(expand(words.get("Nodes", "")))
        except ValueError:
            continue
        name = words.get("ReservationName", "")
        found.append(Maintenance(name=name, start_s=start_s, end_s=end_s, nodes=nodes))
    return tuple(sorted(found, key=lambda item: item.start_s))


def first_in_the_way(
    maintenance: Sequence[Maintenance], nodes: frozenset[str], needed: int, *, until_s: float
) -> Maintenance | None:
    """The first one that would keep a job of ``needed`` of these nodes from running from now to
    ``until_s``: together with those before it, it leaves too few."""
    left = set(nodes)
    for item in maintenance:
        if item.start_s >= until_s:
            break
        left -= item.nodes
        if len(left) < needed:
            return item
    return None
