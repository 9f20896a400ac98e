"""Which replicas need another place, and where that is. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exaslurm.bind.binder import choose_node, replica_ids
from exaslurm.controller.cell import Cell
from exaslurm.controller.replicas import MAX_FAILURES, Replica
from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.facts import NodeFacts
from exaslurm.errors import BindingMismatch


@dataclass(frozen=True, slots=True)
class Move:
    """A place for a replica that needs one; ``replica`` is None if it never had one."""

    replica: Replica | None
    place: ReplicaBinding
    reason: str


def moves_due(cell: Cell, now: float) -> list[Move]:
    """Moves to make now, each one seeing the ones before it. Replicas for which no node has room
    stay where they are: their agent goes on trying."""
    if cell.binding is None or cell.stopping or not cell.engines_started:
        return []
    usable = {node.name for node in cell.members.usable()}
    facts = [
        node.report.facts
        for node in cell.members.joined(now)
        if node.report is not None and node.name in usable
    ]
    places = {replica.id: replica.binding for replica in cell.replicas.values()}
    moves = []
    for replica in cell.replicas.values():
        reason = (
            reason_to_move(replica) if replica.gang is None else _gang_moves(cell, replica, now)
        )
        if reason is None:
            continue
        others = [place for name, place in places.items() if name != replica.id]
        avoid = {*replica.failed_on, *_avoided(replica)}
        place = _place(cell, replica.id, replica.binding.model, replica.binding.shard,
                       others, facts, avoid)  # fmt: skip
        if place is not None:
            places[replica.id] = place
            moves.append(Move(replica, place, reason))
    for name, model, shard in replica_ids(cell.cell):
        if name not in places:
            place = _place(cell, name, model, shard, list(places.values()), facts, set())
            if place is not None:
                places[name] = place
                moves.append(Move(None, place, "there is room for it now"))
    return moves


def reason_to_move(replica: Replica) -> str | None:
    """Why a replica should go elsewhere; None if it should stay."""
    if replica.unreachable is not None:
        return replica.unreachable
    engine = replica.engine
    if engine is not None and engine.phase == "failed" and replica.failures >= MAX_FAILURES:
        return f"its engine ended {replica.failures} times: {engine.cause or 'no reason given'}"
    return None


def _gang_moves(cell: Cell, replica: Replica, now: float) -> str | None:
    """Why a replica over several nodes should get others; only when all of it has ended."""
    gang = replica.gang
    joined = {node.name for node in cell.members.joined(now)}
    if gang is None or not gang.is_over(joined):
        return None
    lost = [name for name in replica.binding.nodes if name not in joined]
    return gang.failure if lost else reason_to_move(replica)


def _avoided(replica: Replica) -> set[str]:
    """The nodes that it must leave. A gang leaves the one that it failed on."""
    if replica.gang is None:
        return {replica.binding.node}
    return {replica.gang.failed_node} if replica.gang.failed_node else set()


def _place(
    cell: Cell,
    name: str,
    model: str,
    shard: str,
    placed: Sequence[ReplicaBinding],
    nodes: Sequence[NodeFacts],
    avoid: set[str],
) -> ReplicaBinding | None:
    try:
        return choose_node(
            cell.plan, cell.cell, replica=name, model=model, shard=shard,
            placed=placed, nodes=nodes, avoid=avoid,
        )  # fmt: skip
    except BindingMismatch:
        return None
