"""Replicas over several nodes: their parts, one a node, and the whole made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from exaslurm.core.binding import RankBinding, ReplicaBinding


def joined(parts: Sequence[ReplicaBinding]) -> ReplicaBinding:
    """The replica whose parts, in the order of ranks, were bound one by one."""
    if len(parts) == 1:
        return parts[0]
    return dataclasses.replace(
        parts[0],
        ranks=tuple(RankBinding(rank=rank, **part.place()) for rank, part in enumerate(parts)),
    )


def parts_of(replicas: Iterable[ReplicaBinding]) -> list[ReplicaBinding]:
    """One binding for each node of each replica: what nodes have to account for."""
    return [part for replica in replicas for part in replica.parts()]
