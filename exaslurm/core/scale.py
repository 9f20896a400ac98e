"""How many replicas of each shard are wanted, and where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """``scale.json``: replicas of shards (``model:shard``) over all cells. A shard that is not
    named has as many as are planned. ``fixed`` are the shards whose number a person has said: they
    are not scaled automatically. ``cells``: how they were divided last, by the cells' names, so
    that a change of the numbers moves as few of them as can be."""

    schema: Literal["exaslurm/scale/1"] = "exaslurm/scale/1"
    replicas: Mapping[str, int] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()
    cells: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """``POST /v1/targets`` of a cell's controller, and ``cells/<cell>/targets.json``: how many
    replicas of each shard (``model:shard``) it shall run; None: all that are planned."""

    replicas: Mapping[str, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """``wake/<model:shard>.json``: so many requests wait at a router for a first replica, as of
    ``time_s`` (Unix seconds)."""

    shard: str
    count: int
    time_s: float
