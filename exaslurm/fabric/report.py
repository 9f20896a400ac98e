"""All pairs of a measurement as text: the usual figures, and the pairs that stand out."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from exaslurm.fabric.measure import Measured
from exaslurm.fabric.probe import NodeResult

REPORT_SCHEMA: Literal["exaslurm/fabric-probe/1"] = "exaslurm/fabric-probe/1"
SHOWN = 8
# What differs from the median by more than this factor is worth a look.
ODD = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """What all nodes saw, by rank."""

    schema: Literal["exaslurm/fabric-probe/1"] = REPORT_SCHEMA
    nodes: tuple[NodeResult, ...]

    @property
    def measured(self) -> list[tuple[str, str, Measured]]:
        """(node, node, figures) of each pair that was measured."""
        return [
            (node.node, pair.peer, pair.measured)
            for node in self.nodes
            for pair in node.pairs
            if pair.measured is not None
        ]

    @property
    def failures(self) -> list[str]:
        """Ways that are closed and pairs that could not be measured, in words."""
        closed = [
            f"{node.node} cannot reach {peer}: {why}"
            for node in self.nodes
            for peer, why in node.unreachable
        ]
        unreached = {(node.node, peer) for node in self.nodes for peer, _ in node.unreachable}
        broken = [
            f"{node.node} - {pair.peer}: {pair.error}"
            for node in self.nodes
            for pair in node.pairs
            if pair.error is not None
            and not {(node.node, pair.peer), (pair.peer, node.node)} & unreached
        ]
        return closed + broken


def report_text(report: ProbeReport) -> str:
    """Headline, medians, odd pairs, failures."""
    pairs = report.measured
    lines = [f"{len(report.nodes)} nodes, {len(pairs)} pairs measured"]
    if pairs:
        lines += _figure(pairs, "round trip", "us", lambda m: m.rtt_us, high_is_bad=True)
        lines += _figure(pairs, "round trip, p99", "us", lambda m: m.rtt_p99_us, high_is_bad=True)
        lines += _figure(
            pairs, "one TCP stream", "Gbit/s", lambda m: min(m.gbps_out, m.gbps_in),
            high_is_bad=False,
        )  # fmt: skip
        rdma = [pair for pair in pairs if pair[2].rdma is not None]
        if rdma:
            lines += _figure(
                rdma, "RDMA write, latency", "us", lambda m: m.rdma.latency_us if m.rdma else 0.0,
                high_is_bad=True,
            )  # fmt: skip
            lines += _figure(
                rdma, "RDMA write", "Gbit/s", lambda m: m.rdma.gbps if m.rdma else 0.0,
                high_is_bad=False,
            )  # fmt: skip
        errors = [f"{a} - {b}: {m.rdma_error}" for a, b, m in pairs if m.rdma_error is not None]
        lines += _some(errors, "RDMA")
    return "\n".join(lines + _some(report.failures, "failed"))


def _figure(
    pairs: Sequence[tuple[str, str, Measured]],
    what: str,
    unit: str,
    value: Callable[[Measured], float],
    *,
    high_is_bad: bool,
) -> list[str]:
    values = [(value(measured), a, b) for a, b, measured in pairs]
    middle = statistics.median(number for number, _, _ in values)
    least, most = min(values)[0], max(values)[0]
    lines = [f"{what}: median {middle:g} {unit} ({least:g} to {most:g})"]
    odd = [
        (number, a, b)
        for number, a, b in values
        if (number > ODD * middle if high_is_bad else number < middle / ODD)
    ]
    for number, a, b in sorted(odd, reverse=high_is_bad)[:SHOWN]:
        lines.append(f"  {a} - {b}: {number:g} {unit}")
    if len(odd) > SHOWN:
        lines.append(f"  and {len(odd) - SHOWN} more pairs")
    return lines


def _some(lines: Sequence[str], word: str) -> list[str]:
    shown = [f"{word}: {line}" for line in lines[:SHOWN]]
    return shown + ([f"{word}: {len(lines) - SHOWN} more"] if len(lines) > SHOWN else [])
