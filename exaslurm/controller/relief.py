"""Replicas that give way to others on a node that is short of memory, and come back. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from exaslurm.controller.cell import Cell
from exaslurm.controller.pressure import HOST, Candidate, Shortage, who_gives_way
from exaslurm.controller.replicas import Replica


@dataclass(frozen=True, slots=True)
class Relief:
    """A replica that leaves its node, and why."""

    replica: Replica
    node: str
    reason: str


def reliefs_due(cell: Cell, now: float) -> list[Relief]:
    """Who gives way now: one replica of a node at a time, so that what it frees is seen."""
    if cell.binding is None or cell.stopping or not cell.engines_started:
        return []
    found: dict[str, Relief] = {}
    for shortage in cell.pressure.shortages(now):
        here = [r for r in cell.replicas.values() if shortage.node in r.binding.nodes]
        if shortage.node in found or any(replica.leaving is not None for replica in here):
            continue
        chosen = who_gives_way(_candidates(cell, here, shortage))
        if chosen is not None:
            replica = cell.replicas[chosen.replica]
            reason = _reason(replica, here, shortage)
            found[shortage.node] = Relief(replica, shortage.node, reason)
    return list(found.values())


def _reason(replica: Replica, here: list[Replica], shortage: Shortage) -> str:
    mine = replica.shard.priority
    above = max(other.shard.priority for other in here) > mine
    to = "more important ones" if above else "others as important"
    return f"it gave way to {to} (its priority is {mine}): {shortage.sentence}"


def _candidates(cell: Cell, here: list[Replica], shortage: Shortage) -> list[Candidate]:
    serving = Counter(
        (replica.binding.model, replica.binding.shard)
        for replica in cell.replicas.values()
        if replica.state == "ready"
    )
    return [
        Candidate(
            replica=replica.id,
            priority=replica.shard.priority,
            busy=replica.requests,
            size_mib=replica.size_mib,
            alone=serving[replica.binding.model, replica.binding.shard]
            <= (replica.state == "ready"),
        )
        for replica in here
        if replica.engine is not None
        and replica.resting is None
        and (shortage.what == HOST or shortage.what in _gpus(replica, shortage.node))
    ]


def _gpus(replica: Replica, node: str) -> tuple[str, ...]:
    return replica.binding.on_node(node).gpus
