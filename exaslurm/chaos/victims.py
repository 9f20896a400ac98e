"""Who a fault hits: chosen from what ``status`` says, or named by the user. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from exaslurm.chaos.kinds import Kind
from exaslurm.core.cell import NodeState, ReplicaStatus
from exaslurm.errors import UserError
from exaslurm.status.model import CellStatus, DeploymentStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """What is hit. ``cell`` is the turn's name; of an engine ``replica`` says which, of a router or
    supervisor ``host`` where it runs."""

    cell: str | None = None
    job_id: str | None = None
    node: str | None = None
    het_group: int | None = None
    address: str | None = None
    ports: tuple[int, ...] = ()
    replica: str | None = None
    host: str | None = None
    pid: int | None = None

    @property
    def name(self) -> str:
        """The shortest name for people."""
        named = self.replica or self.node or self.host or self.cell or "Slurm"
        return f"{named} (process {self.pid})" if self.pid is not None else named


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the user has said of the victim; nothing: it is chosen. ``count`` nodes at once."""

    replica: str | None = None
    node: str | None = None
    cell: str | None = None
    count: int = 1


def choose(
    kind: Kind, status: DeploymentStatus, wanted: Wanted, rng: random.Random
) -> tuple[Victim, ...]:
    """The victims. UserError if there is no such one, or if the fault knows no such choice."""
    if wanted.count > 1 and kind.hits != "node":
        raise UserError(f"{kind.name} hits one at a time, not {wanted.count}")
    if kind.hits == "slurm":
        return (Victim(),)
    if kind.hits in ("router", "supervisor"):
        return ()  # found by the files of the run directory
    cells = [cell for cell in status.cells if cell.job is not None and cell.source == "controller"]
    if wanted.cell is not None:
        cells = [cell for cell in cells if cell.name == wanted.cell]
    if not cells:
        what = f"cell {wanted.cell} is not there" if wanted.cell else "no cell is there"
        raise UserError(
            f"{what}, or its controller gives no answer",
            remedy=f"exaslurm status {status.deployment}",
        )
    if kind.hits == "engine":
        return (_engine(cells, wanted, rng),)
    if kind.hits == "cell":
        return (_of_cell(rng.choice(cells)),)
    if kind.hits == "head":
        return (_head(rng.choice(cells)),)
    return _nodes(cells, wanted, rng)


def _engine(cells: Sequence[CellStatus], wanted: Wanted, rng: random.Random) -> Victim:
    every = [
        (cell, replica)
        for cell in cells
        for replica in cell.replicas
        if replica.state == "ready" and replica.pid is not None
    ]
    fit = [
        (cell, replica)
        for cell, replica in every
        if wanted.replica in (None, replica.id) and wanted.node in (None, replica.node)
    ]
    if not fit:
        known = ", ".join(replica.id for _, replica in every[:8]) or "none"
        named = wanted.replica or f"of {wanted.node}"
        raise UserError(f"no replica {named} is ready", remedy=f"ready are: {known}")
    cell, replica = rng.choice(fit)
    node = _node(cell, replica.node)
    return _at(cell, node, replica=replica)


def _head(cell: CellStatus) -> Victim:
    """The node where the controller runs: that of the first component, first of its nodes."""
    if not cell.nodes:
        raise UserError(f"the nodes of {cell.name} are not known yet")
    first = min(cell.nodes, key=lambda node: node.het_group)
    heads = [node for node in cell.nodes if node.het_group == first.het_group]
    leads = cell.job.nodes[0] if cell.job is not None and cell.job.nodes else heads[0].node
    node = next((node for node in heads if node.node == leads), heads[0])
    return _at(cell, node)


def _nodes(cells: Sequence[CellStatus], wanted: Wanted, rng: random.Random) -> tuple[Victim, ...]:
    """Worker nodes with replicas; the head's node is hit only if it is named."""
    every = [(cell, node) for cell in cells for node in cell.nodes if node.state == "joined"]
    if wanted.node is not None:
        names = wanted.node.split(",")
        fit = [(cell, node) for cell, node in every if node.node in names]
        absent = [name for name in names if name not in {node.node for _, node in fit}]
        if absent:
            known = ", ".join(node.node for _, node in every)
            raise UserError(f"no node {', '.join(absent)} in the cells", remedy=f"known: {known}")
        return tuple(_at(cell, node) for cell, node in fit)
    heads = {(cell.name, _head(cell).node) for cell in cells if cell.nodes}
    busy = [
        (cell, node)
        for cell, node in every
        if (cell.name, node.node) not in heads
        and any(replica.node == node.node for replica in cell.replicas)
    ]
    alone = [(cell, node) for cell, node in every if len(cell.nodes) == 1]
    fit = busy or alone
    if len(fit) < wanted.count:
        raise UserError(
            f"{len(fit)} nodes besides the heads' carry replicas, {wanted.count} are needed",
            remedy="name them: --node NODE[,NODE]",
        )
    return tuple(_at(cell, node) for cell, node in rng.sample(fit, wanted.count))


def _node(cell: CellStatus, name: str) -> NodeState:
    for node in cell.nodes:
        if node.node == name:
            return node
    raise UserError(f"node {name} of {cell.name} is not known to its controller")


def _at(cell: CellStatus, node: NodeState, *, replica: ReplicaStatus | None = None) -> Victim:
    return Victim(
        cell=cell.name,
        job_id=_bare(cell),
        node=node.node,
        het_group=node.het_group,
        address=node.address,
        ports=tuple(
            int(item.url.rpartition(":")[2]) for item in cell.replicas if item.node == node.node
        ),
        replica=replica.id if replica is not None else None,
        pid=replica.pid if replica is not None else None,
    )


def _of_cell(cell: CellStatus) -> Victim:
    return Victim(cell=cell.name, job_id=_bare(cell))


def _bare(cell: CellStatus) -> str | None:
    """The job's id without the cluster's name."""
    ident = cell.job.id if cell.job is not None else None
    return None if ident is None else ident.partition(";")[0]
