"""What a restarted controller must know and no agent can tell it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from exaslurm.core.cell import PhaseTimes

MEMORY_SCHEMA: Literal["exaslurm/controller/1"] = "exaslurm/controller/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingMemory:
    """That a replica leaves its place, and whether its engine was to end already."""

    reason: str
    then: Literal["move", "yield", "go"]
    unwanted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMemory:
    """The engine process that answered a canary (pid, start ticks), the phases so far, and that
    the replica leaves, or rests until a node has memory for it (``returns``: how often it was back
    in vain)."""

    process: tuple[int, int] | None = None
    phases: PhaseTimes = field(default_factory=PhaseTimes)
    leaving: LeavingMemory | None = None
    resting: str | None = None
    returns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainedNode:
    """A node that was drained: why, and until when later jobs shall do without it (Unix seconds,
    None: they need not)."""

    reason: str
    since_s: float
    until_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerMemory:
    """``cells/<cell>/controller.json``, of one job: a marker with another start time makes it
    void. ``drained``: nodes that shall carry nothing any more, and why. ``targets``: how many
    replicas of each shard are wanted (None: all that are planned)."""

    schema: Literal["exaslurm/controller/1"] = MEMORY_SCHEMA
    started_s: float
    ray_epoch: int = 1
    ray_seconds: float | None = None
    replicas: Mapping[str, ReplicaMemory] = field(default_factory=dict)
    drained: Mapping[str, DrainedNode] = field(default_factory=dict)
    targets: Mapping[str, int] | None = None
