"""Plan and facts to binding: which replica runs on which node, with what of it.

Pure and deterministic: the order in which nodes reported makes no difference. The same rule
(``core.placement``) placed the replicas on imagined nodes when the plan was made.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from exaslurm.bind.gang import joined, parts_of
from exaslurm.bind.node import NodePlacer, bound, floats, needs_sharing, room_of
from exaslurm.core.binding import CellBinding, ReplicaBinding
from exaslurm.core.facts import NodeFacts
from exaslurm.core.gangs import choose_rooms
from exaslurm.core.placement import Demand, Room, Rooms
from exaslurm.core.plan import CellPlan, Plan
from exaslurm.errors import BindingMismatch


def replica_ids(cell: CellPlan) -> list[tuple[str, str, str]]:
    """Id, model and shard of every replica of a cell, in the order of the plan."""
    found: list[tuple[str, str, str]] = []
    for item in cell.replica_sets:
        for _ in range(item.count):
            found.append((f"{cell.name}-r{len(found):04d}", item.model, item.shard))
    return found


def bind_cell(plan: Plan, cell: CellPlan, nodes: Sequence[NodeFacts]) -> CellBinding:
    """Give every replica of the cell its place on the nodes that reported.

    With fewer nodes than planned, replicas that have no room are left out, and ``notes`` says
    which. Raises BindingMismatch, naming nodes and numbers, if all nodes are there and yet do
    not hold what was planned, or if not one replica has a place.
    """
    workers = worker_nodes(cell, nodes)
    _check_names(cell, workers)
    rooms = Rooms([room_of(facts, order) for order, facts in enumerate(workers)])
    wanted = [
        (replica, Demand.of(plan.model(model), shard))
        for replica, model, shard in replica_ids(cell)
    ]
    chosen: dict[str, tuple[Demand, tuple[str, ...]]] = {}
    squeezed: list[str] = []
    homeless: list[tuple[str, Demand]] = []
    for replica, demand in sorted(wanted, key=lambda item: item[1].size(), reverse=True):
        found, shared = _rooms_for(rooms, demand, ())
        if not found:
            homeless.append((replica, demand))
            continue
        for room in found:
            if shared:
                squeezed.append(room.name)
            rooms.take(room, demand)
        chosen[replica] = (demand, tuple(room.name for room in found))
    expected = sum(part.nodes for part in cell.components if part.role != "head")
    if homeless and (len(workers) >= expected or not chosen):
        raise BindingMismatch(_mismatch(cell, homeless, workers))
    return CellBinding(
        deployment=plan.deployment,
        cell=cell.name,
        plan_hash=plan.hash,
        replicas=_bindings(wanted, chosen, workers),
        notes=_notes(plan, workers, expected, homeless, chosen, squeezed),
    )


def choose_node(
    plan: Plan,
    cell: CellPlan,
    *,
    replica: str,
    model: str,
    shard: str,
    placed: Sequence[ReplicaBinding],
    nodes: Sequence[NodeFacts],
    avoid: Collection[str] = (),
) -> ReplicaBinding:
    """A place for one replica beside those that are ``placed`` already (the replica itself is
    not among them), on any of ``nodes`` (on several, if it takes several) but those named in
    ``avoid``.

    Raises BindingMismatch, naming nodes and numbers, if there is none.
    """
    workers = worker_nodes(cell, nodes)
    placed = parts_of(placed)
    demand = Demand.of(plan.model(model), shard)
    rooms = Rooms([_used_room(plan, facts, order, placed) for order, facts in enumerate(workers)])
    found, _ = _rooms_for(rooms, demand, avoid)
    if not found:
        usable = [facts for facts in workers if facts.node not in avoid]
        raise BindingMismatch(_mismatch(cell, [(replica, demand)], usable))
    parts = []
    for room in found:
        facts = next(facts for facts in workers if facts.node == room.name)
        placer = NodePlacer(facts, share_cores=floats(facts) is not None)
        for other in placed:
            if other.node == facts.node:
                placer.taken(other)
        parts.append(bound(replica, demand, facts, placer.place(demand)))
    return joined(parts)


def worker_nodes(cell: CellPlan, nodes: Sequence[NodeFacts]) -> list[NodeFacts]:
    """The nodes that may carry replicas, in the order of Slurm's node lists."""
    groups = {part.het_group for part in cell.components if part.role != "head"}
    return sorted(
        (facts for facts in nodes if facts.het_group in groups),
        key=lambda facts: (facts.het_group, facts.order, facts.node),
    )


def _check_names(cell: CellPlan, workers: Sequence[NodeFacts]) -> None:
    names = [facts.node for facts in workers]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BindingMismatch(f"cell {cell.name}: node {twice[0]} reported twice")


def _rooms_for(
    rooms: Rooms, demand: Demand, avoid: Collection[str]
) -> tuple[tuple[Room, ...], bool]:
    """Nodes with room, else ones where cores or memory have to be shared (then true); empty if
    there are too few of those too."""
    found = choose_rooms(rooms, demand, avoid=avoid)
    if found:
        return found, False
    return choose_rooms(rooms, demand, share=True, avoid=avoid), True


def _used_room(plan: Plan, facts: NodeFacts, order: int, placed: Sequence[ReplicaBinding]) -> Room:
    room = room_of(facts, order)
    for other in placed:
        if other.node == facts.node:
            room.take(Demand.of(plan.model(other.model), other.shard))
    return room


def _bindings(
    wanted: Sequence[tuple[str, Demand]],
    chosen: dict[str, tuple[Demand, tuple[str, ...]]],
    workers: Sequence[NodeFacts],
) -> tuple[ReplicaBinding, ...]:
    """Cores, GPUs and ports of each replica, in the order in which nodes were chosen (the large
    ones first); the result is in the order of the plan."""
    by_name = {facts.node: facts for facts in workers}
    placers = {}
    for name, facts in by_name.items():
        demands = [demand for demand, nodes in chosen.values() if name in nodes]
        sharing = floats(facts) is not None or needs_sharing(facts, demands)
        placers[name] = NodePlacer(facts, share_cores=sharing)
    done = {
        replica: joined(
            [bound(replica, demand, by_name[node], placers[node].place(demand)) for node in nodes]
        )
        for replica, (demand, nodes) in chosen.items()
    }
    return tuple(done[replica] for replica, _ in wanted if replica in done)


def _notes(
    plan: Plan,
    workers: Sequence[NodeFacts],
    expected: int,
    homeless: Sequence[tuple[str, Demand]],
    chosen: dict[str, tuple[Demand, tuple[str, ...]]],
    squeezed: Sequence[str],
) -> tuple[str, ...]:
    notes = []
    if len(workers) < expected:
        notes.append(f"{len(workers)} of {expected} worker nodes are there")
    notes += [
        f"{replica} ({demand.model}:{demand.shard}) has no place" for replica, demand in homeless
    ]
    used = {node for _, nodes in chosen.values() for node in nodes}
    for facts in workers:
        if facts.node not in used or plan.layout == "local":
            continue
        reason = floats(facts)
        if reason is not None:
            notes.append(f"{facts.node}: replicas share all its cores: {reason}")
        elif facts.node in squeezed:
            notes.append(
                f"{facts.node}: replicas share cores or memory: it carries more than planned"
            )
    return tuple(notes)


def _mismatch(
    cell: CellPlan, homeless: Sequence[tuple[str, Demand]], workers: Sequence[NodeFacts]
) -> str:
    replica, demand = homeless[0]
    more = f" and {len(homeless) - 1} more" if len(homeless) > 1 else ""
    asked = {part.het_group: part.gpus_per_node for part in cell.components}
    nodes = ", ".join(
        f"{facts.node} has {len(facts.gpus)} GPUs of {asked[facts.het_group]} asked"
        if demand.gpus
        else f"{facts.node} has {len(facts.cpus)} CPUs"
        for facts in workers
    )
    return (
        f"cell {cell.name}: no place for {replica} ({demand.model}:{demand.shard}){more}, which "
        f"takes {demand.gpus} GPUs and {demand.cores} cores{_on_each(demand)}, at most "
        f"{demand.max_per_node} on a node: {nodes or 'no worker node is there'}"
    )


def _on_each(demand: Demand) -> str:
    return f" on each of {demand.nodes} nodes" if demand.nodes > 1 else ""
