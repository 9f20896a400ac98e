"""What a restarted controller must know and no agent can tell it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from exaslurm.core.cell import PhaseTimes

MEMORY_SCHEMA: Literal["exaslurm/controller/1"] = "exaslurm/controller/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMemory:
    """The engine process that answered a canary (pid, start ticks), and the phases so far."""

    process: tuple[int, int] | None = None
    phases: PhaseTimes = field(default_factory=PhaseTimes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerMemory:
    """``cells/<cell>/controller.json``, of one job: a marker with another start time makes it
    void."""

    schema: Literal["exaslurm/controller/1"] = MEMORY_SCHEMA
    started_s: float
    ray_epoch: int = 1
    ray_seconds: float | None = None
    replicas: Mapping[str, ReplicaMemory] = field(default_factory=dict)
