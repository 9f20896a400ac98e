"""What ``status`` says of the network: nothing while it is well."""

from __future__ import annotations

from collections.abc import Sequence

from exaslurm.core.cell import NodeState
from exaslurm.core.fabric import PortFigures

# A port that waits for a tenth of the time, and what no healthy link has at all.
CONGESTED = 0.1
ERRORS_PER_S = 1.0
MAX_LINES = 16


def fabric_lines(nodes: Sequence[NodeState]) -> list[str]:
    """One line for each port with something to say, the worst of each node first."""
    found = [
        f"network: {node.node} {port.name} ({port.fabric}, {port.rate_gbps:g} Gbit/s): {words}"
        for node in nodes
        for port in sorted(node.fabric, key=lambda port: -(port.congestion or 0.0))
        if (words := "; ".join(port_words(port)))
    ]
    more = len(found) - MAX_LINES
    if more <= 0:
        return found
    return [*found[:MAX_LINES], f"network: {more} more ports with findings (--json shows all)"]


def port_words(port: PortFigures) -> list[str]:
    """What is the matter with a port; empty if nothing is."""
    words = []
    if not port.state.upper().endswith("ACTIVE"):
        words.append(f"{port.state.lower()} since the cell came up")
    if port.congestion is not None and port.congestion >= CONGESTED:
        words.append(f"held up {100 * port.congestion:.0f} % of the time")
    for rate, what in (
        (port.errors_per_s, "errors"),
        (port.discards_per_s, "packets discarded"),
        (port.retransmits_per_s, "retransmits"),
    ):
        if rate is not None and rate >= ERRORS_PER_S:
            words.append(f"{rate:.0f} {what} a second")
    return words
