"""A node as a tree of text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from exaslurm.core.topology import NodeTopology
from exaslurm.topo.files import as_list
from exaslurm.topo.layout import Domain, domains, gib, hca_text, summary
from exaslurm.topo.nearness import nearest_hcas, nearness
from exaslurm.topo.replicas import PlacedReplica

Node = tuple[str, list["Node"]]


def tree(topology: NodeTopology, replicas: Sequence[PlacedReplica] = ()) -> str:
    """Sockets, NUMA nodes, devices; with the replicas that use them."""
    title = f"{topology.host or 'this node'}: {summary(topology) or 'nothing known'}"
    if topology.arch:
        title += f" ({topology.arch})"
    children: list[Node] = []
    for package, found in groupby(domains(topology), key=lambda domain: domain.package):
        nodes = [_domain(domain, topology, replicas) for domain in found]
        children += nodes if package is None else [(f"socket {package}", nodes)]
    memory = [node for node in topology.numa if node.kind == "device"]
    owners = {gpu.memory_node for gpu in topology.gpus}
    lost = [node for node in memory if node.index not in owners]
    children += [(f"NUMA {node.index}: memory of a GPU, {gib(node.mem_mib)}", []) for node in lost]
    links = link_lines(topology)
    if links:
        children.append(("links between GPUs", [(text, []) for text in links]))
    return "\n".join([title, *_lines(children)])


def _domain(domain: Domain, topology: NodeTopology, replicas: Sequence[PlacedReplica]) -> Node:
    devices: list[Node] = [_cores(domain, replicas)] if domain.cores else []
    for place, gpu in domain.gpus:
        size = f" {gib(gpu.mem_mib)}" if gpu.mem_mib else ""
        text = f"GPU {gpu.index} {gpu.name or gpu.vendor}{size} {gpu.pci or ''}".rstrip()
        if gpu.memory_node is not None:
            text += f" (its memory is NUMA {gpu.memory_node})"
        near = nearest_hcas(gpu, topology.hcas)
        if near:
            names = ", ".join(hca.name for hca in near)
            text += f" -> {names} ({nearness(gpu, near[0])})"
        devices.append((text + _users(place, replicas), []))
    devices += [(hca_text(hca) + _network_users(hca.name, replicas), []) for hca in domain.hcas]
    devices += [
        (
            f"{drive.name} {drive.model or ''}"
            f"{f' {drive.size_gib:.0f} GiB' if drive.size_gib else ''}".rstrip(),
            [],
        )
        for drive in domain.drives
    ]
    if domain.numa is None:
        return "near to no single NUMA node", devices
    kind = "" if domain.numa.kind == "cpu" else f" ({domain.numa.kind} memory)"
    cpus = f", CPUs {as_list(domain.numa.cpus)}" if domain.numa.cpus else ""
    return f"NUMA {domain.numa.index}{kind}: {gib(domain.numa.mem_mib)}{cpus}", devices


def _cores(domain: Domain, replicas: Sequence[PlacedReplica]) -> Node:
    cores = domain.cores
    cpus = {cpu for core in cores for cpu in core.cpus}
    threads = max(len(core.cpus) for core in cores)
    text = f"{len(cores)} core{'s' if len(cores) != 1 else ''}" + (
        f" of {threads} threads" if threads > 1 else ""
    )
    used: list[Node] = []
    for replica in replicas:
        mine = tuple(sorted(cpus & set(replica.cpus)))
        shared = "" if replica.pinned else " (shared)"
        if mine:
            used.append((f"{replica.id} {replica.shard}: CPUs {as_list(mine)}{shared}", []))
    return text, used


def _users(place: int, replicas: Sequence[PlacedReplica]) -> str:
    names = [replica.id for replica in replicas if place in replica.gpus]
    return f"  [{', '.join(names)}]" if names else ""


def _network_users(name: str, replicas: Sequence[PlacedReplica]) -> str:
    names = [replica.id for replica in replicas if name in replica.hcas]
    return f"  [{', '.join(names)}]" if names else ""


def link_lines(topology: NodeTopology) -> list[str]:
    """One line for each kind and number of lanes."""
    count = len(topology.gpus)
    found = []
    kinds = sorted({(link.kind, link.lanes) for link in topology.links})
    for kind, lanes in kinds:
        pairs = [(x.a, x.b) for x in topology.links if (x.kind, x.lanes) == (kind, lanes)]
        names = [f"{topology.gpus[a].index}-{topology.gpus[b].index}" for a, b in pairs]
        text = "every pair" if len(pairs) == count * (count - 1) // 2 else ", ".join(names)
        found.append(f"{kind} x{lanes}: {text}")
    return found


def _lines(nodes: Sequence[Node], indent: str = "") -> list[str]:
    found = []
    for place, (text, children) in enumerate(nodes):
        last = place == len(nodes) - 1
        found.append(f"{indent}{'`-' if last else '|-'} {text}")
        found += _lines(children, indent + ("   " if last else "|  "))
    return found
