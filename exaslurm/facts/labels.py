"""What Ray's labels say of a node: strings, for label selectors of Ray work on the cell.

Numbers that conditions compare are facts (``NodeFacts.measures`` and the topology), not labels:
Ray compares labels only for equality.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence

from exaslurm.core.fabric import fabric_of, usable_ports
from exaslurm.core.facts import GpuFact
from exaslurm.core.topology import NodeTopology


def labels(
    kind: str,
    topology: NodeTopology,
    cards: Sequence[GpuFact],
    switch: str | None,
    *,
    local: bool,
    hcas: Sequence[str] = (),
) -> dict[str, str]:
    """Labels of a node. ``local``: it has storage of its own; ``hcas``: the site's patterns of
    the devices that engines may use."""
    found = {
        "kind": kind,
        "arch": topology.arch or platform.machine(),
        "numa": str(len(topology.memory_nodes) or 1),
        "ib_gbps": f"{fastest_gbps(topology, hcas):g}",
        "fabric": fabric_of(topology.hcas, hcas) or "ethernet",
        "nvme": "true" if local else "false",
    }
    if switch:
        found["switch"] = switch
    if cards:
        found["gpu-vendor"] = cards[0].vendor
        if cards[0].name:
            found["gpu-type"] = cards[0].name
    return {name: label_value(value) for name, value in found.items()}


def fastest_gbps(topology: NodeTopology, hcas: Sequence[str] = ()) -> float:
    """Rate of the fastest active port of a high-speed fabric, 0 where there is only Ethernet."""
    return max(
        (
            port.rate_gbps
            for hca, port in usable_ports(topology.hcas, hcas)
            if hca.fabric != "ethernet"
        ),
        default=0.0,
    )


def label_value(text: str) -> str:
    """At most 63 of ``[A-Za-z0-9-_.]``, an alphanumeric first and last
    (https://docs.ray.io/en/latest/ray-core/scheduling/labels.html)."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:63].strip("-_.")
