"""Which replica runs where: made once per cell in the allocation, from plan and facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BINDING_SCHEMA: Literal["exaslurm/binding/1"] = "exaslurm/binding/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaBinding:
    """One replica's place. ``slot`` counts from 0 on its node; ``cores`` are logical CPUs;
    ``mem_node`` is the NUMA node of its memory (None: left to the kernel); ``gpus`` are visible
    ids; ``hca`` is ``device:port`` or None. ``pinned`` is false where the node has fewer CPUs
    than Slurm was told, so that its replicas share them."""

    id: str
    model: str
    shard: str
    node: str
    address: str
    port: int
    slot: int
    cores: tuple[int, ...]
    pinned: bool
    mem_node: int | None
    gpus: tuple[str, ...]
    hca: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellBinding:
    """All replicas of a cell. ``notes`` are sentences for ``status`` (spread not reached, ...)."""

    schema: Literal["exaslurm/binding/1"] = BINDING_SCHEMA
    deployment: str
    cell: str
    plan_hash: str
    replicas: tuple[ReplicaBinding, ...]
    notes: tuple[str, ...] = ()
