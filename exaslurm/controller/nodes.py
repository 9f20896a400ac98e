"""Which nodes of the cell are there. Pure: the caller brings the time (monotonic seconds)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from exaslurm.core.cell import AgentReport, NodeState
from exaslurm.core.marker import BootstrapMarker
from exaslurm.core.plan import CellPlan
from exaslurm.errors import AllocationError

HEARTBEAT_S = 5.0
SILENT_AFTER_S = 3 * HEARTBEAT_S
LOST_AFTER_S = 12 * HEARTBEAT_S
WONDER_AFTER_S = 20.0


@dataclass(slots=True)
class Node:
    """One node of the allocation and what it said last. Until it says something, its silence
    counts from the controller's start."""

    name: str
    het_group: int
    report: AgentReport | None = None
    reported_s: float = 0.0
    cause: str | None = None

    def age_s(self, now: float) -> float:
        """Time since the last report."""
        return now - self.reported_s


class Membership:
    """All nodes that Slurm granted, and those that have reported."""

    def __init__(
        self, marker: BootstrapMarker, cell: CellPlan, *, now: float, deadline_s: float
    ) -> None:
        self.nodes: Mapping[str, Node] = {
            name: Node(name, int(group), reported_s=now)
            for group, names in sorted(marker.nodes.items(), key=lambda item: int(item[0]))
            for name in names
        }
        self._cell = cell
        self._since = now
        self._deadline = now + deadline_s
        self._deadline_s = deadline_s

    @property
    def head(self) -> Node:
        """The first node of component 0."""
        return next(iter(self.nodes.values()))

    def on_report(self, report: AgentReport, now: float) -> Node:
        """Take a node's report; AllocationError if the node is none of ours."""
        node = self.nodes.get(report.node)
        if node is None or report.cell != self._cell.name:
            raise AllocationError(
                f"{report.node} (cell {report.cell}) is not a node of cell {self._cell.name}: "
                f"those are {', '.join(self.nodes)}"
            )
        node.report = report
        node.reported_s = now
        node.cause = None
        return node

    def joined(self, now: float) -> list[Node]:
        """Nodes that report, in order."""
        return [
            node
            for node in self.nodes.values()
            if node.report is not None and node.age_s(now) <= SILENT_AFTER_S
        ]

    def known(self) -> list[Node]:
        """Nodes that have ever reported."""
        return [node for node in self.nodes.values() if node.report is not None]

    def missing(self) -> list[Node]:
        """Nodes that have never reported."""
        return [node for node in self.nodes.values() if node.report is None]

    def late(self, now: float) -> list[Node]:
        """Nodes that have not reported although it is time to wonder why."""
        return self.missing() if now - self._since > min(WONDER_AFTER_S, self._deadline_s) else []

    def deadline_over(self, now: float) -> bool:
        """Whether the time to wait for nodes is over."""
        return now >= self._deadline

    def shortage(self) -> str | None:
        """Which component has fewer nodes than it needs; None if each has enough."""
        for component in self._cell.components:
            have = sum(n.het_group == component.het_group for n in self.known())
            if have < component.min_nodes:
                return (
                    f"component {component.het_group}: {have} of {component.nodes} nodes reported "
                    f"in {self._deadline_s:.0f} s, at least {component.min_nodes} are needed"
                )
        return None

    def settled(self, now: float) -> bool:
        """Whether to go on: all nodes are there, or it is time and there are enough."""
        return not self.missing() or (self.deadline_over(now) and self.shortage() is None)

    def problem(self, now: float) -> str | None:
        """The first thing that is wrong with the nodes; None while there is still time."""
        if self.missing() and self.deadline_over(now):
            lacking = self.missing()
            names = ", ".join(node.name for node in lacking[:8])
            more = f" and {len(lacking) - 8} more" if len(lacking) > 8 else ""
            why = next((node.cause for node in lacking if node.cause), None)
            text = f"{names}{more}: no report from the node agent in {self._deadline_s:.0f} s"
            return f"{text}; {why}" if why else text
        for node in self.known():
            if node.age_s(now) > SILENT_AFTER_S:
                return f"{node.name}: no report for {node.age_s(now):.0f} s"
        return None

    def states(self, now: float) -> tuple[NodeState, ...]:
        """All nodes, for ``CellState``."""
        return tuple(self._state(node, now) for node in self.nodes.values())

    def _state(self, node: Node, now: float) -> NodeState:
        report = node.report
        if report is None:
            return NodeState(
                node=node.name, het_group=node.het_group, state="expected", cause=node.cause
            )
        age_s = node.age_s(now)
        silent = age_s > SILENT_AFTER_S
        return NodeState(
            node=node.name,
            het_group=node.het_group,
            state="lost" if age_s > LOST_AFTER_S else "silent" if silent else "joined",
            address=report.facts.address,
            last_report_age_s=round(age_s, 1),
            ray=report.ray,
            cause=node.cause or (f"no report for {age_s:.0f} s" if silent else None),
            fabric=() if silent else report.fabric,
        )
