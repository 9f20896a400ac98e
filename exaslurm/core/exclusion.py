"""Nodes that a job cannot use, and those that the next submission shall do without."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

EXCLUDED_SCHEMA: Literal["exaslurm/excluded/1"] = "exaslurm/excluded/1"

# Sites mend nodes within a day; one that is still bad then is found again in minutes.
EXCLUDED_S = 24 * 3600.0
# One that only did not report may have been booting; Slurm itself leaves out those that are down.
SILENT_EXCLUDED_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTasks:
    """``cells/<cell>/ended.json``: how the step's task ended, by node, of those where it did while
    the cell comes up. Such a node will not report."""

    nodes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedNode:
    """A node that a job could not use. Times are Unix seconds."""

    node: str
    reason: str
    job_id: str
    since_s: float
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedNodes:
    """``excluded/<cell>.json``: what the jobs of a cell found out about nodes."""

    schema: Literal["exaslurm/excluded/1"] = EXCLUDED_SCHEMA
    nodes: tuple[ExcludedNode, ...] = ()

    def current(self, now_s: float) -> tuple[ExcludedNode, ...]:
        """Those whose time is not over."""
        return tuple(item for item in self.nodes if item.until_s > now_s)

    def joined(self, found: Iterable[ExcludedNode], now_s: float) -> ExcludedNodes:
        """The current ones and those that were found now, which start anew if their reason is
        another one."""
        nodes = {item.node: item for item in self.current(now_s)}
        for item in found:
            old = nodes.get(item.node)
            if old is None or (old.reason, old.job_id) != (item.reason, item.job_id):
                nodes[item.node] = item
        return ExcludedNodes(nodes=tuple(nodes[name] for name in sorted(nodes)))
