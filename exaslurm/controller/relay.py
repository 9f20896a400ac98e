"""Replicas of a drained node come up elsewhere before they end there. Pure.

While its successor loads, a replica goes on serving. When the successor has answered a real
request, it takes the replica's name and routers learn its address; the engine that it relieves goes
on until they all have, and then finishes what it has begun. Where no other node has room, where the
successor does not come up, and for replicas over several nodes (whose nodes may overlap), a replica
leaves first and is started anew after that.
"""

from __future__ import annotations

from dataclasses import dataclass

from exaslurm.controller.cell import Cell
from exaslurm.controller.replace import place_elsewhere
from exaslurm.controller.replicas import MAX_FAILURES, Replica
from exaslurm.core.binding import ReplicaBinding


@dataclass(frozen=True, slots=True)
class Relay:
    """A place for a replica's successor; None: it leaves first."""

    replica: Replica
    place: ReplicaBinding | None
    reason: str


def relays_due(cell: Cell, now: float) -> list[Relay]:
    """What to do for the replicas of drained nodes now, the most important ones first. Each place
    is the only one: carry it out, and ask again."""
    if cell.binding is None or cell.stopping or not cell.engines_started:
        return []
    for replica in sorted(cell.replicas.values(), key=lambda item: -item.shard.priority):
        drained = next(filter(None, map(cell.members.drained.get, replica.binding.nodes)), None)
        if drained is None or replica.leaving or replica.resting or replica.successor:
            continue
        place = None
        if replica.state == "ready" and replica.gang is None and not replica.relay_failed:
            place = place_elsewhere(cell, replica, now)
        return [Relay(replica, place, drained.reason)]
    return []


def given_up(cell: Cell, replica: Replica, now: float) -> str | None:
    """Why the successor of a replica will not serve; None while it may."""
    successor = replica.successor
    if successor is None:
        return None
    node = successor.binding.node
    if node not in {item.name for item in cell.members.joined(now)}:
        return f"{node} gives no answer"
    if node in cell.members.drained:
        return f"{node} is drained too"
    if successor.failures >= MAX_FAILURES:
        return successor.cause or "its engine does not come up"
    limit_s = cell.plan.timeouts.stage_s + cell.plan.timeouts.ready_s
    if now - replica.succeeded_since_s > limit_s:
        return f"it does not serve after {limit_s:.0f} s"
    return None
