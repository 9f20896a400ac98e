"""Draining on request: replicas, or all that a node carries. Pure.

A drained replica is started anew in the best place, which is not the one it left if another node
has room. A drained node carries nothing for the rest of the job, and later jobs do without it for
a while; its replicas come up elsewhere first, where there is room (see ``relay``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from exaslurm.controller.memory import DrainedNode
from exaslurm.controller.nodes import Membership
from exaslurm.controller.replicas import Replica
from exaslurm.errors import AllocationError


class Drainable(Protocol):
    """What of a cell is needed here."""

    members: Membership
    replicas: dict[str, Replica]


def check_known(cell: Drainable, replicas: Sequence[str], nodes: Sequence[str]) -> None:
    """AllocationError, with the names that there are, if one of these is not there."""
    _known("replica", replicas, cell.replicas)
    _known("node", nodes, cell.members.nodes)


def drain_replicas(cell: Drainable, names: Sequence[str], reason: str, now: float) -> None:
    """Have these replicas leave."""
    for name in names:
        cell.replicas[name].leave(reason, now)


def drain_nodes(
    cell: Drainable, names: Sequence[str], reason: str, *, wall_s: float, excluded_s: float
) -> None:
    """Have these nodes carry nothing from now on (``wall_s``, Unix time), and later jobs do
    without them for ``excluded_s`` (0: they need not)."""
    for name in names:
        until_s = wall_s + excluded_s if excluded_s > 0 else None
        cell.members.drained[name] = DrainedNode(reason=reason, since_s=wall_s, until_s=until_s)


def _known(what: str, names: Sequence[str], known: Iterable[str]) -> None:
    there = sorted(known)
    for name in names:
        if name not in there:
            shown = ", ".join(there[:16]) + (f" and {len(there) - 16} more" if there[16:] else "")
            raise AllocationError(f"no {what} {name!r} here; there are {shown or 'none'}")
