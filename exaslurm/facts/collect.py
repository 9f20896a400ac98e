"""All facts of this node in one value."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from exaslurm.core.facts import NodeFacts
from exaslurm.core.plan import NodeEnvironment
from exaslurm.facts.gpus import gpus
from exaslurm.facts.labels import labels
from exaslurm.facts.memory import usable_mib
from exaslurm.slurm.topology import address_path
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
    measures: Mapping[str, float] | None = None,
) -> NodeFacts:
    """Facts of this node; ``cpus`` defaults to the CPUs that this process may run on, ``measures``
    are figures that were measured before."""
    granted = environ.get("SLURM_CPUS_ON_NODE", "")
    order = environ.get("SLURM_NODEID", "")
    drivers = read_node(sys, proc, host=node_name(environ))
    topology = drivers.topology
    cards = gpus(environ, topology.gpus, drivers.accessible)
    switches = address_path(environ)
    switch = switches[-1] if switches else None
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
        switches=switches,
        labels=labels(kind, topology, cards, switch, local=_has_local(node), hcas=node.fabric.hcas),
        measures=dict(measures or {}),
    )


def _has_local(node: NodeEnvironment) -> bool:
    return node.local is not None and os.access(node.local, os.W_OK | os.X_OK)
