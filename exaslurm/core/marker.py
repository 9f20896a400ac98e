"""What the first process in an allocation writes down about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from exaslurm.core.facts import NodeFacts

MARKER_SCHEMA: Literal["exaslurm/bootstrap/1"] = "exaslurm/bootstrap/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapMarker:
    """``cells/<cell>/bootstrap.json``: which job, on which nodes, by which plan.

    ``nodes`` and ``het_job_ids`` map the number of a component (as text) to its node names, in
    the order of Slurm's node list, and to its job id. ``job_id`` is the leader's, or ``local``.
    Times are Unix seconds of the batch host; ``job_start_s`` is Slurm's own (None: unknown).
    ``switches`` (above a node, the topmost first) and ``features`` are by node, as far as known.
    """

    schema: Literal["exaslurm/bootstrap/1"] = MARKER_SCHEMA
    plan_hash: str
    deployment: str
    cell: str
    job_id: str
    job_name: str
    het_job_ids: Mapping[str, str]
    nodes: Mapping[str, tuple[str, ...]]
    host: str
    started_s: float
    job_start_s: float | None = None
    switches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    features: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def group_of(self, node: str) -> int | None:
        """The component that a node belongs to; None if it is none of the cell's nodes."""
        for group, names in self.nodes.items():
            if node in names:
                return int(group)
        return None

    def complete(self, facts: NodeFacts) -> NodeFacts:
        """A node's facts with what only the whole cluster knows of it."""
        above = self.switches.get(facts.node) or facts.switches
        return replace(
            facts,
            switches=above,
            switch=above[-1] if above else facts.switch,
            features=self.features.get(facts.node, facts.features),
        )
