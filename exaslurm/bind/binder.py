"""Plan and facts to binding: which replica runs on which node, with what of it.

Pure and deterministic: the order in which nodes reported makes no difference. The same rule
(``core.placement``) placed the replicas on imagined nodes when the plan was made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from exaslurm.bind.conditions import Reasons, barred_notes, locality_notes, why_barred
from exaslurm.bind.elsewhere import turns
from exaslurm.bind.gang import joined, parts_of
from exaslurm.bind.node import NodePlacer, bound, floats, room_of
from exaslurm.bind.remarks import place_notes
from exaslurm.bind.spread import spread_notes
from exaslurm.bind.stages import in_tensor_groups, link_notes
from exaslurm.core.binding import CellBinding, ReplicaBinding
from exaslurm.core.fabric import narrowed
from exaslurm.core.facts import NodeFacts
from exaslurm.core.filling import Filling, fill
from exaslurm.core.gangs import choose_rooms
from exaslurm.core.placement import Demand, Room, Rooms, Shard
from exaslurm.core.plan import CellPlan, Plan
from exaslurm.errors import BindingMismatch


def replica_ids(cell: CellPlan) -> list[tuple[str, str, str]]:
    """Id, model and shard of every replica of a cell, in the order of the plan."""
    found: list[tuple[str, str, str]] = []
    for item in cell.replica_sets:
        for _ in range(item.count):
            found.append((f"{cell.name}-r{len(found):04d}", item.model, item.shard))
    return found


def bind_cell(
    plan: Plan,
    cell: CellPlan,
    nodes: Sequence[NodeFacts],
    elsewhere: Mapping[Shard, frozenset[str]] | None = None,
) -> CellBinding:
    """Give every replica of the cell its place on the nodes that reported. ``elsewhere``: see
    ``fatal_elsewhere``.

    With fewer nodes than planned, replicas that have no room are left out, and ``notes`` says
    which. Raises BindingMismatch, naming nodes and numbers, if all nodes are there and yet do
    not hold what was planned, or if not one replica has a place.
    """
    workers = _with_site_ports(plan, worker_nodes(cell, nodes))
    _check_names(cell, workers)
    by_name = {facts.node: facts for facts in workers}
    barred = {facts.node: why_barred(plan, facts) for facts in workers}
    rooms = Rooms(
        [_room(cell, facts, order, barred[facts.node]) for order, facts in enumerate(workers)],
        plan.survival,
        {(item.model, item.shard): item.apart for item in cell.replica_sets},
        elsewhere,
        turns(plan, cell),
    )
    wanted = [
        (replica, Demand.of(plan.model(model), shard))
        for replica, model, shard in replica_ids(cell)
    ]
    filling = fill(rooms, wanted, share=True)
    chosen = {
        replica: (demand, tuple(room.name for room in found))
        for replica, demand, found in filling.placed
    }
    expected = sum(part.nodes for part in cell.components if part.role != "head")
    unexcused = [
        (replica, demand)
        for replica, demand in filling.homeless
        if len(workers) >= expected and not _spared(cell, demand, barred)
    ]
    if filling.homeless and (unexcused or not chosen):
        raise BindingMismatch(_mismatch(cell, unexcused or filling.homeless, workers, barred))
    replicas = in_tensor_groups(plan, _bindings(cell, wanted, chosen, workers), by_name)
    notes = _notes(plan, workers, expected, filling, chosen)
    return CellBinding(
        deployment=plan.deployment,
        cell=cell.name,
        plan_hash=plan.hash,
        replicas=replicas,
        notes=(
            *notes,
            *place_notes(replicas, by_name, _shared(workers, filling)),
            *barred_notes(barred),
            *link_notes(plan, replicas, by_name),
            *locality_notes(plan, replicas, by_name),
            *spread_notes(plan, cell, replicas, by_name),
        ),
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
    share: bool = True,
) -> ReplicaBinding:
    """A place for one replica beside those that are ``placed`` already (the replica itself is
    not among them), on any of ``nodes`` (on several, if it takes several) but those named in
    ``avoid``. ``share``: where no node has room, cores and memory may be shared.

    Raises BindingMismatch, naming nodes and numbers, if there is none.
    """
    workers = _with_site_ports(plan, worker_nodes(cell, nodes))
    placed = parts_of(placed)
    demand = Demand.of(plan.model(model), shard)
    barred = {facts.node: why_barred(plan, facts) for facts in workers}
    rooms = Rooms(
        [
            _used_room(plan, _room(cell, facts, order, barred[facts.node]), placed)
            for order, facts in enumerate(workers)
        ],
        plan.survival,
    )
    found = choose_rooms(rooms, demand, avoid=avoid)
    if share and not found:
        found = choose_rooms(rooms, demand, share=True, avoid=avoid)
    if not found:
        usable = [facts for facts in workers if facts.node not in avoid]
        raise BindingMismatch(_mismatch(cell, [(replica, demand)], usable, barred))
    parts = []
    for room in found:
        facts = next(facts for facts in workers if facts.node == room.name)
        placer = _placer(cell, facts)
        for other in placed:
            if other.node == facts.node:
                placer.taken(other, Demand.of(plan.model(other.model), other.shard).mem_mib)
        parts.append(bound(replica, demand, facts, placer.place(demand)))
    return in_tensor_groups(plan, [joined(parts)], {facts.node: facts for facts in workers})[0]


def worker_nodes(cell: CellPlan, nodes: Sequence[NodeFacts]) -> list[NodeFacts]:
    """The nodes that may carry replicas, in the order of Slurm's node lists."""
    groups = {part.het_group for part in cell.components if part.role != "head"}
    return sorted(
        (facts for facts in nodes if facts.het_group in groups),
        key=lambda facts: (facts.het_group, facts.order, facts.node),
    )


def _with_site_ports(plan: Plan, workers: Sequence[NodeFacts]) -> list[NodeFacts]:
    """The nodes with those network devices that the site lets engines use."""
    patterns = plan.node.fabric.hcas
    return [
        dataclasses.replace(facts, topology=narrowed(facts.topology, patterns)) for facts in workers
    ]


def _check_names(cell: CellPlan, workers: Sequence[NodeFacts]) -> None:
    names = [facts.node for facts in workers]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BindingMismatch(f"cell {cell.name}: node {twice[0]} reported twice")


def _room(cell: CellPlan, facts: NodeFacts, order: int, barred: Reasons) -> Room:
    """The free room of an empty node. Which of unequal nodes comes first is decided by what their
    kinds have, as when the plan was made."""
    room = room_of(facts, order)
    part = next(part for part in cell.components if part.het_group == facts.het_group)
    return dataclasses.replace(
        room,
        switches=frozenset(facts.above()),
        spare_gpus=room.gpus if part.kind_gpus is None else part.kind_gpus,
        spare_cores=room.cores if part.kind_cores is None else part.kind_cores,
        barred=frozenset(barred),
    )


def _used_room(plan: Plan, room: Room, placed: Sequence[ReplicaBinding]) -> Room:
    for other in placed:
        if other.node == room.name:
            room.take(Demand.of(plan.model(other.model), other.shard))
    return room


def _spared(cell: CellPlan, demand: Demand, barred: Mapping[str, Reasons]) -> bool:
    """Whether nodes that may not carry the model are the reason why it has no room, and those
    that may are as many as the cell needs at least."""
    may = [node for node, reasons in barred.items() if demand.model not in reasons]
    least = sum(part.min_nodes for part in cell.components if part.role != "head")
    return least <= len(may) < len(barred)


def _shared(workers: Sequence[NodeFacts], filling: Filling[str]) -> set[str]:
    """Nodes whose cores are shared for a reason that is said anyway."""
    return {*filling.squeezed, *(facts.node for facts in workers if floats(facts) is not None)}


def _placer(cell: CellPlan, facts: NodeFacts, expected: Sequence[Demand] = ()) -> NodePlacer:
    component = next(part for part in cell.components if part.het_group == facts.het_group)
    return NodePlacer(facts, expected=expected, reserved=component.reserved_cpus)


def _bindings(
    cell: CellPlan,
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
        placers[name] = _placer(cell, facts, demands)
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
    filling: Filling[str],
    chosen: dict[str, tuple[Demand, tuple[str, ...]]],
) -> list[str]:
    notes = []
    if len(workers) < expected:
        notes.append(f"{len(workers)} of {expected} worker nodes are there")
    notes += [
        f"{replica} ({demand.model}:{demand.shard}) has no place"
        for replica, demand in filling.homeless
    ]
    used = {node for _, nodes in chosen.values() for node in nodes}
    for facts in workers:
        if facts.node not in used or plan.layout == "local":
            continue
        reason = floats(facts)
        if reason is not None:
            notes.append(f"{facts.node}: replicas share all its cores: {reason}")
        elif facts.node in filling.squeezed:
            notes.append(
                f"{facts.node}: replicas share cores or memory: it carries more than planned"
            )
    return notes


def _mismatch(
    cell: CellPlan,
    homeless: Sequence[tuple[str, Demand]],
    workers: Sequence[NodeFacts],
    barred: Mapping[str, Reasons],
) -> str:
    replica, demand = homeless[0]
    more = f" and {len(homeless) - 1} more" if len(homeless) > 1 else ""
    asked = {part.het_group: part.gpus_per_node for part in cell.components}

    def has(facts: NodeFacts) -> str:
        reason = barred[facts.node].get(demand.model)
        if reason is not None:
            return f"{facts.node} does not meet {reason}"
        if demand.gpus:
            return f"{facts.node} has {len(facts.gpus)} GPUs of {asked[facts.het_group]} asked"
        return f"{facts.node} has {len(facts.cpus)} CPUs"

    nodes = ", ".join(has(facts) for facts in workers)
    return (
        f"cell {cell.name}: no place for {replica} ({demand.model}:{demand.shard}){more}, which "
        f"takes {demand.gpus} GPUs and {demand.cores} cores{_on_each(demand)}, at most "
        f"{demand.max_per_node} on a node: {nodes or 'no worker node is there'}"
    )


def _on_each(demand: Demand) -> str:
    return f" on each of {demand.nodes} nodes" if demand.nodes > 1 else ""
