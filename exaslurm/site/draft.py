"""A first site config, written from what Slurm says of a cluster. Pure: inventory in, text out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from exaslurm.core.topology import NodeTopology
from exaslurm.slurm.inventory import Inventory, SlurmNode, SlurmPartition

_DEVICES = {"nvidia": "cuda", "amd": "rocm", "intel": "xpu"}
# Nodes in these states are not to be had, but of a kind like the others.
_GONE = ("FUTURE",)


@dataclass(slots=True, kw_only=True)
class _Kind:
    """Nodes that are alike."""

    name: str
    nodes: list[SlurmNode]
    device: str | None = None
    gpu_cpus: list[str] = field(default_factory=list)

    @property
    def one(self) -> SlurmNode:
        return self.nodes[0]

    @property
    def mem_mib(self) -> int:
        """What the smallest of them has."""
        return min(node.mem_mib for node in self.nodes)

    @property
    def gpus(self) -> int:
        return sum(count for _, count in self.one.gpus)

    @property
    def gpu_type(self) -> str | None:
        types = {name for name, _ in self.one.gpus}
        return types.pop() or None if len(types) == 1 else None


def draft(name: str, inventory: Inventory, topologies: Sequence[NodeTopology] = ()) -> str:
    """The text of a site config. ``topologies`` are of nodes that somebody looked at: they tell
    the network interface and the maker of the GPUs, which Slurm does not."""
    kinds = _kinds(inventory)
    for topology in topologies:
        _look_at(kinds, topology)
    interface = next(filter(None, map(_interface, topologies)), None)
    lines = [
        "# Drafted by `exaslurm site draft` from scontrol. Read it, fill in what is missing, take",
        "# out of `unverified` what you have confirmed, and run `exaslurm site check` on it.",
        "schema: exaslurm/site/v1",
        f"name: {name}",
        f"description: Cluster {inventory.config.get('ClusterName', name)}",
        "",
        *_slurm(inventory),
        "",
        "node_kinds:",
    ]
    for kind in kinds:
        lines += _kind(kind, kinds, inventory)
    lines += ["partitions:", *map(_partition, inventory.partitions)]
    workers = next((kind for kind in kinds if kind.gpus), kinds[0])
    head = next((kind for kind in kinds if not kind.gpus), workers)
    lines += [f"workers: {{kind: {workers.name}}}"]
    lines += [f"head: {{kind: {head.name}, cpus: {min(4, head.one.usable_cpus)}, mem_gib: 16}}", ""]
    lines += _rest(interface)
    return "\n".join(lines) + "\n"


def _kinds(inventory: Inventory) -> list[_Kind]:
    """Nodes with the same processors, GPUs, features and partitions; memory may differ a little."""
    groups: dict[object, list[SlurmNode]] = {}
    for node in inventory.nodes:
        if node.cpus and not node.state.startswith(_GONE):
            size = round(node.mem_mib / 1024 / 16)
            key = (node.usable_cpus, node.gpus, set_text(node.features), node.partitions, size)
            groups.setdefault(key, []).append(node)
    kinds: list[_Kind] = []
    taken: set[str] = set()
    for nodes in sorted(groups.values(), key=len, reverse=True):
        base = _base_name(nodes[0])
        unique, number = base, 2
        while unique in taken:
            unique, number = f"{base}-{number}", number + 1
        taken.add(unique)
        kinds.append(_Kind(name=unique, nodes=nodes))
    if not kinds:
        raise ValueError("Slurm knows no node with processors")
    return kinds


def set_text(words: Sequence[str]) -> str:
    """Words in an order of their own."""
    return ",".join(sorted(words))


def _base_name(node: SlurmNode) -> str:
    """By its GPUs, else cpu; a type may have signs that a name may not."""
    types = [name or "gpu" for name, _ in node.gpus]
    word = re.sub(r"[^A-Za-z0-9._-]", "-", types[0] if types else "cpu").strip("-._")
    return word or "gpu"


def _look_at(kinds: Sequence[_Kind], topology: NodeTopology) -> None:
    """Take the GPUs' maker and neighbourhood from one node of a kind."""
    host = topology.host.split(".", 1)[0]
    for kind in kinds:
        if any(node.name == host for node in kind.nodes):
            break
    else:
        return
    vendors = {gpu.vendor for gpu in topology.gpus}
    if len(vendors) == 1 and kind.gpus:
        kind.device = _DEVICES[vendors.pop()]
    near = [
        next((node.cpus for node in topology.numa if node.index == gpu.numa), gpu.cpus)
        for gpu in sorted(topology.gpus, key=lambda gpu: gpu.index)
    ]
    if len(near) == kind.gpus and all(near):
        kind.gpu_cpus = [_ranges(cpus) for cpus in near]


def _interface(topology: NodeTopology) -> str | None:
    """The interface of the fastest network device that is up."""
    best: tuple[float, str] | None = None
    for hca in topology.hcas:
        rates = [port.rate_gbps for port in hca.ports if port.state == "ACTIVE"]
        if hca.interfaces and rates and (best is None or max(rates) > best[0]):
            best = (max(rates), hca.interfaces[0])
    return best[1] if best else None


def _ranges(cpus: Sequence[int]) -> str:
    """0-3,8-11"""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][1] + 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _slurm(inventory: Inventory) -> Iterator[str]:
    config = inventory.config
    selects = config.get("SelectType", "")
    yield "slurm:"
    yield f"  version: {_word(config.get('SLURM_VERSION', ''))}"
    backfill = config.get("SchedulerType", "") == "sched/backfill"
    yield f"  hetjobs: {_flag(backfill)}  # they are started by the backfill scheduler only"
    consumed = "MEMORY" in config.get("SelectTypeParameters", "").upper()
    yield "  memory: per_node" + ("" if consumed else "  # Slurm does not share memory out here")
    gres = "gpu" in config.get("GresTypes", "").split(",") and "linear" not in selects
    yield f"  gres: {'gres' if gres else 'none'}"
    if config.get("JobSubmitPlugins", "(null)") not in ("", "(null)"):
        plugins = config["JobSubmitPlugins"]
        yield f"  # Jobs pass a submit filter ({plugins}): it may want options, or refuse some."
    if "associations" in config.get("AccountingStorageEnforce", ""):
        yield "  # Accounts are enforced; if users have no default account:"
        yield "  # mandatory_directives: [account]"


def _kind(kind: _Kind, kinds: Sequence[_Kind], inventory: Inventory) -> Iterator[str]:
    partition, others = _partition_of(kind.one, inventory)
    node = kind.one
    yield f"  {kind.name}:"
    if partition is not None:
        also = f"  # also in {', '.join(others)}" if others else ""
        yield f"    partition: {partition.name}{also}"
    yield f"    count: {len(kind.nodes)}"
    threads = f"  # {node.threads_per_core} threads a core" if node.threads_per_core > 1 else ""
    yield f"    cpus: {node.cpus}{threads}"
    if node.usable_cpus < node.cpus:
        yield f"    reserved_cores: {node.cpus - node.usable_cpus}"
    yield f"    mem_gib: {kind.mem_mib // 1024}"
    if kind.gpus:
        yield f"    gpus: {kind.gpus}"
        if kind.gpu_type:
            yield f"    gpu_type: {_word(kind.gpu_type)}"
        missing = "" if kind.device else "  # rocm for AMD, xpu for Intel"
        yield f"    device: {kind.device or 'cuda'}{missing}"
    if kind.gpu_cpus:
        yield f"    gpu_cpus: {json.dumps(kind.gpu_cpus)}  # near each GPU, by number"
    if partition is not None and partition.exclusive:
        yield "    exclusive: true"
    constraint = _constraint(kind, kinds, partition, inventory)
    if constraint is not None:
        yield f"    constraint: {_word(constraint)}  # the partition has other nodes, too"
    if node.features:
        yield f"    features: [{', '.join(map(_word, node.features))}]"


def _partition_of(
    node: SlurmNode, inventory: Inventory
) -> tuple[SlurmPartition | None, tuple[str, ...]]:
    """The partition to use: the default one if the node is in it, else the first that is up."""
    own = [part for part in inventory.partitions if part.name in node.partitions and part.is_up]
    if not own:
        return None, ()
    chosen = next((part for part in own if part.is_default), own[0])
    return chosen, tuple(part.name for part in own if part is not chosen)


def _constraint(
    kind: _Kind, kinds: Sequence[_Kind], partition: SlurmPartition | None, inventory: Inventory
) -> str | None:
    """A feature that tells these nodes from others in the same partition, where GPUs do not."""
    rivals = [
        other
        for other in kinds
        if other is not kind
        and other.one.gpus == kind.one.gpus
        and _partition_of(other.one, inventory)[0] is partition
    ]
    theirs = {feature for other in rivals for feature in other.one.features}
    own = [feature for feature in kind.one.features if feature not in theirs]
    return own[0] if rivals and own else None


def _partition(partition: SlurmPartition) -> str:
    limits: dict[str, object] = {}
    if partition.max_nodes is not None:
        limits["max_nodes"] = partition.max_nodes
    if partition.min_nodes > 1:
        limits["min_nodes"] = partition.min_nodes
    if partition.max_time is not None:
        limits["max_time"] = partition.max_time
    text = ", ".join(f"{key}: {value}" for key, value in limits.items())
    return f"  {_word(partition.name)}: {{{text}}}"


def _rest(interface: str | None) -> Iterator[str]:
    if interface is not None:
        yield f"interface: {interface}"
    else:
        yield "# interface: ib0       # or hsn0; without it the address of the node's name is used"
    yield "storage:"
    yield "  shared: $HOME/.cache  # better: a scratch file system, such as /scratch/$USER"
    yield "  # local: /local       # the node's own NVMe"
    yield "  ram: /tmp"
    yield "# internet: {access: direct}  # or none, or proxy with its address"
    yield "# container: {runtime: apptainer}"
    yield "gateway:"
    yield "  homes: [service, login]"
    yield "  background: false"
    yield ""
    unsure = ["slurm.hetjobs", "slurm.memory", "storage", "gateway", "internet", "container"]
    unsure += ["interface"] if interface is None else []
    yield f"unverified: [{', '.join(unsure)}]"


def _word(text: str) -> str:
    """A value as YAML: quoted only where it has to be."""
    plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9_./+-]*|\d+(\.\d+)*", text)
    words: Mapping[str, object] = {"true": 1, "false": 1, "null": 1, "yes": 1, "no": 1, "on": 1}
    return text if plain and text.lower() not in words else json.dumps(text)


def _flag(value: bool) -> str:
    return "true" if value else "false"
