"""What a cell's controller can be asked to let go."""

from __future__ import annotations

from dataclasses import dataclass

from exaslurm.core.exclusion import EXCLUDED_S


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequest:
    """The body of ``POST /v1/drain``. With neither ``replicas`` nor ``nodes`` it means the whole
    cell: routers shall send it nothing new. ``reason`` is what ``status`` shows; later jobs do
    without drained nodes for ``excluded_s`` seconds (0: they need not)."""

    replicas: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    reason: str = "drained on request"
    excluded_s: float = EXCLUDED_S

    @property
    def is_whole_cell(self) -> bool:
        return not self.replicas and not self.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """The body of ``POST /v1/stop``: requests in flight may take ``grace_s`` seconds (None, and at
    most: the plan's drain time)."""

    grace_s: float | None = None
