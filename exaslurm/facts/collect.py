"""All facts of this node in one value."""

from __future__ import annotations

import os
import platform
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from exaslurm.core.facts import GpuFact, NodeFacts
from exaslurm.core.plan import NodeEnvironment
from exaslurm.core.topology import NodeTopology
from exaslurm.facts.gpus import gpus
from exaslurm.facts.memory import usable_mib
from exaslurm.topo.node import read_node
from exaslurm.topo.sysfs import PROC, SYS


def node_name(environ: Mapping[str, str]) -> str:
    """The name that Slurm uses for this node, outside Slurm the host's own."""
    return environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


def collect(
    node: NodeEnvironment,
    environ: Mapping[str, str],
    *,
    het_group: int,
    kind: str,
    address: str,
    agent_port: int,
    port_base: int,
    sys: Path = SYS,
    proc: Path = PROC,
    cpus: Sequence[int] | None = None,
) -> NodeFacts:
    """Facts of this node; ``cpus`` defaults to the CPUs that this process may run on."""
    granted = environ.get("SLURM_CPUS_ON_NODE", "")
    order = environ.get("SLURM_NODEID", "")
    drivers = read_node(sys, proc, host=node_name(environ))
    topology = drivers.topology
    cards = gpus(environ, topology.gpus, drivers.accessible)
    switch = switch_of(environ)
    return NodeFacts(
        node=node_name(environ),
        het_group=het_group,
        order=int(order) if order.isdigit() else 0,
        address=address,
        agent_port=agent_port,
        port_base=port_base,
        cpus=tuple(sorted(cpus if cpus is not None else os.sched_getaffinity(0))),
        cpus_granted=int(granted) if granted.isdigit() else None,
        mem_mib=usable_mib(environ, proc=proc, cgroup=sys / "fs/cgroup"),
        gpus=cards,
        topology=topology,
        switch=switch,
        labels=labels(kind, topology, cards, switch, _has_local(node)),
    )


def switch_of(environ: Mapping[str, str]) -> str | None:
    """The node's leaf switch, which Slurm's topology plugin tells each task
    (``SLURM_TOPOLOGY_ADDR=root.leaf.node`` with ``_PATTERN=switch.switch.node``)."""
    names = environ.get("SLURM_TOPOLOGY_ADDR", "").split(".")
    kinds = environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").split(".")
    if len(names) != len(kinds) or "switch" not in kinds:
        return None
    return names[len(kinds) - 1 - kinds[::-1].index("switch")] or None


def labels(
    kind: str,
    topology: NodeTopology,
    cards: Sequence[GpuFact],
    switch: str | None,
    local: bool,
) -> dict[str, str]:
    """Strings for constraints, in the form that Ray's labels allow."""
    active = [
        port.rate_gbps
        for hca in topology.hcas
        if hca.fabric != "ethernet"
        for port in hca.ports
        if port.state == "ACTIVE"
    ]
    found = {
        "kind": kind,
        "arch": platform.machine(),
        "numa": str(len(topology.memory_nodes) or 1),
        "ib_gbps": f"{max(active):g}" if active else "0",
        "nvme": "true" if local else "false",
    }
    if switch:
        found["switch"] = switch
    if cards:
        found["gpu-vendor"] = cards[0].vendor
        if cards[0].name:
            found["gpu-type"] = cards[0].name
    return {name: label_value(value) for name, value in found.items()}


def label_value(text: str) -> str:
    """At most 63 of ``[A-Za-z0-9-_.]``, an alphanumeric first and last
    (https://docs.ray.io/en/latest/ray-core/scheduling/labels.html)."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:63].strip("-_.")


def _has_local(node: NodeEnvironment) -> bool:
    return node.local is not None and os.access(node.local, os.W_OK | os.X_OK)
