"""Which nodes of the cell are there. Pure: the caller brings the time (monotonic seconds)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from exaslurm.controller.memory import DrainedNode
from exaslurm.core.cell import AgentReport, NodeState
from exaslurm.core.checks import Check
from exaslurm.core.marker import BootstrapMarker
from exaslurm.core.plan import CellPlan
from exaslurm.core.uniform import compare
from exaslurm.errors import AllocationError

NodeWord = Literal["checking", "excluded", "drained", "joined"]

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
    ended: str | None = None

    def age_s(self, now: float) -> float:
        """Time since the last report."""
        return now - self.reported_s

    @property
    def is_examined(self) -> bool:
        """Whether it reports and has ended its preflight."""
        return self.report is not None and not self.report.checking

    @property
    def is_decided(self) -> bool:
        """Whether there is anything to wait for: it is examined, or will never report."""
        return self.is_examined or (self.report is None and self.ended is not None)

    @property
    def failed_check(self) -> Check | None:
        """The first check that failed there."""
        if self.report is None or self.report.preflight is None:
            return None
        return self.report.preflight.first_failed()


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
        self._pardoned: frozenset[str] = frozenset()
        self._compared: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        # For the rest of the job they carry nothing.
        self.drained: dict[str, DrainedNode] = {}

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

    def on_ended(self, ended: Mapping[str, str]) -> None:
        """These nodes will not report: the step's task there has ended, so."""
        for name, how in ended.items():
            node = self.nodes.get(name)
            if node is not None and node.report is None:
                node.ended = how

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

    def usable(self) -> list[Node]:
        """Nodes that have reported, ended their preflight, and are neither excluded nor drained."""
        return [
            node
            for node in self.nodes.values()
            if node.is_examined and node.name not in self.drained and self.excluded(node) is None
        ]

    def excluded(self, node: Node) -> Check | None:
        """The check for which a node carries nothing; None if it may.

        A node is left out for what others of its component can do. Where all fail, it is not the
        nodes' fault, and engines will show what comes of it. What runs is left alone.
        """
        check = self._bad(node)
        if check is None:
            return None
        others = (other for other in self.nodes.values() if other.het_group == node.het_group)
        good = any(other.is_examined and self._bad(other) is None for other in others)
        return check if good else None

    def pardon(self, carrying: frozenset[str]) -> None:
        """From now on these nodes carry replicas, or would have to: they stay as they are."""
        bad = {node.name for node in self.nodes.values() if self._bad(node) is not None}
        kept = {name for name in bad if self.excluded(self.nodes[name]) is None}
        self._pardoned |= kept | carrying

    def _bad(self, node: Node) -> Check | None:
        return None if node.name in self._pardoned else node.failed_check

    def late(self, now: float) -> list[Node]:
        """Nodes that have not reported although it is time to wonder why."""
        if now - self._since > min(WONDER_AFTER_S, self._deadline_s):
            return self.missing()
        return [node for node in self.missing() if node.ended is not None]

    def deadline_over(self, now: float) -> bool:
        """Whether the time to wait for nodes is over."""
        return now >= self._deadline

    def shortage(self) -> str | None:
        """Which component has fewer nodes than it needs; None if each has enough."""
        for component in self._cell.components:
            have = sum(n.het_group == component.het_group for n in self.known())
            if have < component.min_nodes:
                return (
                    f"component {component.het_group}: {have} of {component.nodes} nodes reported, "
                    f"at least {component.min_nodes} are needed"
                )
            usable = sum(n.het_group == component.het_group for n in self.usable())
            if usable < component.min_nodes:
                return (
                    f"component {component.het_group}: {usable} of {component.nodes} nodes can be "
                    f"used, at least {component.min_nodes} are needed"
                )
        return None

    def settled(self, now: float) -> bool:
        """Whether to go on: all nodes are examined, or it is time, and there are enough."""
        complete = all(node.is_decided for node in self.nodes.values())
        return (complete or self.deadline_over(now)) and self.shortage() is None

    def hopeless(self, now: float) -> str | None:
        """Why there will never be enough nodes; None while there may be."""
        complete = all(node.is_decided for node in self.nodes.values())
        if not complete and not self.deadline_over(now):
            return None
        shortage = self.shortage()
        if shortage is None:
            return None
        why = self.problem(now) or "; ".join(self.exclusions())
        return f"{shortage}; {why}" if why else shortage

    def exclusions(self) -> list[str]:
        """A sentence for each node that is left out."""
        found = ((node, self.excluded(node)) for node in self.nodes.values())
        return [
            f"{node.name} is left out: {check.sentence()}"
            + (f" ({check.remedy})" if check.remedy else "")
            for node, check in found
            if check is not None
        ] + [f"{name} carries nothing: {drained.reason}" for name, drained in self.drained.items()]

    def differences(self) -> tuple[str, ...]:
        """In what nodes of a component differ that should be alike (drivers, versions, MTU)."""
        examined = tuple(node.name for node in self.nodes.values() if node.is_examined)
        if self._compared[0] != examined:
            found = []
            for group in dict.fromkeys(node.het_group for node in self.nodes.values()):
                of_group = (n for n in self.nodes.values() if n.het_group == group)
                reports = [n.report.preflight for n in of_group if n.report and n.report.preflight]
                for host, checks in compare(reports).items():
                    bad = (check for check in checks if check.outcome == "fail")
                    found += [f"{host} differs: {check.sentence()}" for check in bad]
            self._compared = (examined, tuple(found))
        return self._compared[1]

    def unfit(self, now: float) -> list[tuple[str, str]]:
        """Nodes that other jobs had better do without, and why: those that are left out, and those
        that never reported although others of their component did."""
        found = []
        for node in self.nodes.values():
            check = self.excluded(node)
            if check is not None:
                found.append((node.name, check.sentence()))
            elif node.report is None and (node.ended is not None or self.deadline_over(now)):
                others = (n for n in self.known() if n.het_group == node.het_group)
                if next(others, None) is not None:
                    found.append((node.name, self._why_missing(node)))
        return found

    def _why_missing(self, node: Node) -> str:
        reason = f"no report from the node agent in {self._deadline_s:.0f} s"
        if node.ended is not None:
            reason = f"its task ended before it reported: {node.ended}"
        return f"{reason}; {node.cause}" if node.cause else reason

    def problem(self, now: float) -> str | None:
        """The first thing that is wrong with the nodes; None while there is still time."""
        ended = next((node for node in self.missing() if node.ended is not None), None)
        if ended is not None:
            return f"{ended.name}: {self._why_missing(ended)}"
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
        excluded = self.excluded(node)
        drained = self.drained.get(node.name)
        there: NodeWord = "checking" if report.checking else "excluded" if excluded else "joined"
        if drained is not None:
            there = "drained"
        cause = f"no report for {age_s:.0f} s" if silent else drained.reason if drained else None
        if excluded is not None:
            cause = cause or excluded.sentence()
        return NodeState(
            node=node.name,
            het_group=node.het_group,
            state="lost" if age_s > LOST_AFTER_S else "silent" if silent else there,
            address=report.facts.address,
            last_report_age_s=round(age_s, 1),
            ray=report.ray,
            cause=node.cause or cause,
            fabric=() if silent else report.fabric,
            switches=report.facts.above(),
            checks=report.preflight.checks if report.preflight is not None else (),
            memory=report.memory,
            engines=len(report.engines),
        )
