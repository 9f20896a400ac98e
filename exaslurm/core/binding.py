"""Which replica runs where: made once per cell in the allocation, from plan and facts."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

BINDING_SCHEMA: Literal["exaslurm/binding/1"] = "exaslurm/binding/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    """A place on one node. ``slot`` counts from 0 on its node; ``cores`` are logical CPUs;
    ``mem_nodes`` are the NUMA nodes of its memory (empty: left to the kernel); ``gpus`` are visible
    ids; ``hca`` is ``device:port``, or several of them with commas between, or None. ``pinned`` is
    false where the node has fewer CPUs than Slurm was told, so that its replicas share them.
    ``remark`` says what of it is not as near as it should be (None: nothing).
    """

    node: str
    address: str
    port: int
    slot: int
    cores: tuple[int, ...]
    pinned: bool
    mem_nodes: tuple[int, ...]
    gpus: tuple[str, ...]
    hca: str | None
    remark: str | None = None

    def place(self) -> dict[str, Any]:
        """The fields of the place alone."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(NodePlace)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBinding(NodePlace):
    """The part of a replica over several nodes that runs on one of them. ``rank`` counts the nodes:
    the one of rank 0 answers clients."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaBinding(NodePlace):
    """One replica's place.

    A replica over several nodes is a gang: ``ranks`` are its parts, one a node, and the other
    fields are those of one part: of rank 0, or (``on_node``) of the part that an agent shall run.
    ``attempt`` counts the starts of a gang, whose parts only fit others of the same start.
    """

    id: str
    model: str
    shard: str
    ranks: tuple[RankBinding, ...] = ()
    attempt: int = 0

    @property
    def mem_node(self) -> int | None:
        """The NUMA node of all its memory; None if there are several, or nobody chose."""
        return self.mem_nodes[0] if len(self.mem_nodes) == 1 else None

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes that the replica needs, rank 0's first."""
        return tuple(rank.node for rank in self.ranks) or (self.node,)

    @property
    def rank(self) -> int:
        """Which part this is; 0 for a replica on one node."""
        return next((part.rank for part in self.ranks if part.node == self.node), 0)

    def on_node(self, node: str) -> ReplicaBinding:
        """The same replica as its part on ``node``; KeyError if it has none there."""
        if node == self.node:
            return self
        for part in self.ranks:
            if part.node == node:
                return dataclasses.replace(self, **part.place())
        raise KeyError(node)

    def parts(self) -> tuple[ReplicaBinding, ...]:
        """One binding for each node: what a node has to account for."""
        return tuple(self.on_node(node) for node in self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellBinding:
    """All replicas of a cell. ``notes`` are sentences for ``status`` (spread not reached, ...)."""

    schema: Literal["exaslurm/binding/1"] = BINDING_SCHEMA
    deployment: str
    cell: str
    plan_hash: str
    replicas: tuple[ReplicaBinding, ...]
    notes: tuple[str, ...] = ()
