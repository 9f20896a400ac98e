"""Which replicas need another place, and where that is. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exaslurm.bind.binder import choose_node
from exaslurm.controller.cell import Cell
from exaslurm.controller.replicas import MAX_FAILURES, Replica
from exaslurm.controller.targets import missing
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
    """Moves to make now, each one seeing the ones before it, the most important replicas first.
    Replicas for which no node has room stay where they are, at most in another slot: their agent
    goes on trying."""
    if cell.binding is None or cell.stopping or not cell.engines_started:
        return []
    facts = _facts(cell, now)
    places = _taken(cell)
    moves = []
    for replica in sorted(cell.replicas.values(), key=lambda item: -item.shard.priority):
        reason = _why_moved(cell, replica, now)
        if reason is None:
            continue
        others = [place for name, place in places.items() if name != replica.id]
        place = _new_place(cell, replica, others, facts, now)
        if place is not None:
            places[replica.id] = place
            moves.append(Move(replica, place, reason))
    for name, model, shard in missing(cell):
        place = _place(cell, name, model, shard, list(places.values()), facts, set())
        if place is not None:
            places[name] = place
            moves.append(Move(None, place, "it is wanted, and there is room for it"))
    return moves


def _other_slot(
    cell: Cell, replica: Replica, others: Sequence[ReplicaBinding], facts: Sequence[NodeFacts]
) -> ReplicaBinding | None:
    """Where no other node has room: another slot of its node, with other GPUs and another port,
    that it has not failed in. The GPU may be what is broken, or somebody else have the port."""
    place = replica.binding
    here = [fact for fact in facts if fact.node == place.node]
    if replica.gang is not None or replica.unreachable is not None or not here:
        return None
    failed = [old for old in (*replica.failed_places, place) if old.node == place.node]
    return _place(
        cell, replica.id, place.model, place.shard, [*others, *failed], here, set(), share=False
    )


def place_elsewhere(cell: Cell, replica: Replica, now: float) -> ReplicaBinding | None:
    """A place for a second engine of a replica that goes on where it is."""
    place, others = replica.binding, list(_taken(cell).values())
    avoid = {*replica.failed_on, *place.nodes}
    return _place(
        cell, replica.id, place.model, place.shard, others, _facts(cell, now), avoid, share=False
    )


def _facts(cell: Cell, now: float) -> list[NodeFacts]:
    """Of the nodes that may be given replicas."""
    usable = {n.name for n in cell.members.usable() if not cell.pressure.is_short(n.name)}
    return [
        node.report.facts
        for node in cell.members.joined(now)
        if node.report is not None and node.name in usable
    ]


def _taken(cell: Cell) -> dict[str, ReplicaBinding]:
    """The places that are taken. What rests has none that others could not take."""
    taken = {r.id: r.binding for r in cell.replicas.values() if r.resting is None}
    for replica in cell.replicas.values():
        if replica.successor is not None:
            taken[f"{replica.id} to come"] = replica.successor.binding
    return taken


def _why_moved(cell: Cell, replica: Replica, now: float) -> str | None:
    """Why a replica needs another place now; None if it does not."""
    if replica.resting is not None:
        return "there is memory for it now"
    if replica.leaving is not None:
        comes_back = replica.leaving.over and replica.leaving.then != "go"
        return replica.leaving.reason if comes_back else None
    return reason_to_move(replica) if replica.gang is None else _gang_moves(cell, replica, now)


def _without_memory(cell: Cell, replica: Replica, now: float) -> set[str]:
    """Nodes that a replica may not come back to yet. One that comes up takes memory that nobody
    has seen so far, so they come one at a time."""
    calm_s = cell.pressure.calm_s(replica.returns)
    coming = {
        name
        for other in cell.replicas.values()
        if other.state in ("pending", "staging", "loading", "warming")
        for name in other.binding.nodes
    }
    return {
        name
        for name in cell.members.nodes
        if name in coming or not cell.pressure.has_room(name, replica.size_mib, calm_s, now)
    }


def _new_place(
    cell: Cell,
    replica: Replica,
    others: Sequence[ReplicaBinding],
    facts: Sequence[NodeFacts],
    now: float,
) -> ReplicaBinding | None:
    """Where a replica goes. One that was drained may come back to where it was, if no other node
    has room without crowding those there."""
    place = replica.binding

    def on(avoid: set[str], *, share: bool = True) -> ReplicaBinding | None:
        return _place(
            cell, replica.id, place.model, place.shard, others, facts, avoid, share=share
        )  # fmt: skip

    failed = set(replica.failed_on)
    if replica.resting is not None:
        return on(_without_memory(cell, replica, now), share=False)
    if replica.leaving is None:
        elsewhere = on({*failed, *_avoided(replica)})
        return elsewhere or _other_slot(cell, replica, others, facts)
    left = set(replica.leaving.nodes)
    return on(failed | left, share=False) or on(failed - left, share=False) or on(failed - left)


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
    *,
    share: bool = True,
) -> ReplicaBinding | None:
    try:
        return choose_node(
            cell.plan, cell.cell, replica=name, model=model, shard=shard,
            placed=placed, nodes=nodes, avoid=avoid, share=share,
        )  # fmt: skip
    except BindingMismatch:
        return None
