"""The facts that conditions may name, and what they are on a node, or on any node of a kind."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from exaslurm.core.constraints import Condition, Fact, Value, parse
from exaslurm.core.facts import NodeFacts
from exaslurm.core.placement import Demand

FACTS: Mapping[str, Fact] = MappingProxyType(
    {
        "arch": Fact("text", "Processor architecture, such as x86_64 or aarch64."),
        "cpus": Fact("number", "Logical CPUs that Slurm granted."),
        "fabric": Fact(
            "names",
            "Fabrics with an active port: infiniband, roce, slingshot, omnipath, ethernet.",
        ),
        "feature": Fact("names", "Slurm features of the node."),
        "gpu_mem_gib": Fact("number", "Memory of the smallest GPU.", "GiB"),
        "gpu_type": Fact("text", "Name of the GPUs, as Ray's label gpu-type has it."),
        "gpu_vendor": Fact("text", "nvidia, amd or intel."),
        "gpus": Fact("number", "GPUs that Slurm granted."),
        "ib_gbps": Fact(
            "number",
            "Rate of the fastest active port that is for engines and not plain Ethernet, else 0.",
            "Gbps",
        ),
        "kind": Fact("text", "Node kind of the site."),
        "mem_gib": Fact("number", "Memory that Slurm granted.", "GiB"),
        "node": Fact("text", "Name of the node."),
        "numa": Fact("number", "NUMA nodes with CPUs and memory of their own."),
        "numa_local": Fact("flag", "Cores and GPUs of one replica can come from one NUMA node."),
        "nvme": Fact("flag", "The site's node-local storage is there and can be written to."),
        "rtt_us": Fact("number", "Round trip to the node that leads the cell.", "us"),
        "storage_read_ms": Fact(
            "number", "Time to open and read a small file of the shared storage.", "ms"
        ),
        "switch": Fact("names", "Switches above the node, of every level."),
    }
)


def conditions(texts: Sequence[str]) -> tuple[Condition, ...]:
    """The conditions of a plan, which were checked when it was made."""
    return tuple(parse(text, FACTS) for text in texts)


def node_values(facts: NodeFacts, demand: Demand) -> dict[str, Value]:
    """Everything known of a node, for one replica of a kind; what it does not know is left out."""
    topology = facts.topology
    active = [
        (hca.fabric, port.rate_gbps)
        for hca in topology.hcas
        for port in hca.ports
        if port.state.upper().endswith("ACTIVE")
    ]
    found: dict[str, Value | None] = {
        "arch": facts.labels.get("arch") or topology.arch or None,
        "cpus": float(facts.cpus_granted or len(facts.cpus)),
        "fabric": frozenset(fabric for fabric, _ in active),
        "feature": None if facts.features is None else frozenset(facts.features),
        "gpus": float(len(facts.gpus)),
        "ib_gbps": _rate(facts.labels.get("ib_gbps"), active),
        "kind": facts.labels.get("kind"),
        "mem_gib": facts.mem_mib / 1024,
        "node": facts.node,
        "numa": float(len(topology.memory_nodes) or 1),
        "numa_local": numa_local(facts, demand),
        "nvme": _flag(facts.labels.get("nvme")),
        "switch": frozenset(switches) if (switches := facts.above()) else None,
    }
    sizes = [gpu.mem_mib for gpu in facts.gpus]
    if facts.gpus:
        found["gpu_vendor"] = facts.gpus[0].vendor
        found["gpu_type"] = facts.labels.get("gpu-type")
        known = [size for size in sizes if size is not None]
        found["gpu_mem_gib"] = min(known) / 1024 if len(known) == len(sizes) else None
    measured = {name: value for name, value in facts.measures.items() if name in FACTS}
    return {name: value for name, value in {**found, **measured}.items() if value is not None}


def kind_values(kind: str, *, gpus: int | None) -> dict[str, Value]:
    """What is known of every node of a kind before there are nodes. ``gpus`` are all that such a
    node has: it may be granted fewer, but with none there is none to grant."""
    found: dict[str, Value] = {"kind": kind}
    if gpus == 0:
        found["gpus"] = 0.0
    return found


def numa_local(facts: NodeFacts, demand: Demand) -> bool | None:
    """Whether one NUMA node has the cores and GPUs of one replica; None if it is not known where
    the GPUs are."""
    memory_nodes = facts.topology.memory_nodes
    if len(memory_nodes) < 2:
        return True
    if demand.gpus and any(gpu.numa is None for gpu in facts.gpus):
        return None
    mine = set(facts.cpus)
    for numa in memory_nodes:
        gpus = sum(gpu.numa == numa.index for gpu in facts.gpus)
        if gpus >= demand.gpus and len(mine & set(numa.cpus)) >= demand.cores:
            return True
    return False


def _rate(label: str | None, active: Sequence[tuple[str, float]]) -> float:
    """What the node says itself knows which ports are for engines at this site."""
    if label is not None:
        with contextlib.suppress(ValueError):
            return float(label)
    return max((rate for fabric, rate in active if fabric != "ethernet"), default=0.0)


def _flag(text: str | None) -> bool | None:
    return None if text is None else text == "true"
