"""How the nodes that were asked for become cells and components."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exaslurm.core.plan import Layout
from exaslurm.plan.context import Findings
from exaslurm.site.model import NodeKind, Site
from exaslurm.spec.model import Spec
from exaslurm.util.yaml_lines import Problem, nearest


@dataclass(frozen=True, slots=True)
class Group:
    """The workers of one kind. ``key`` names the entry in the spec; ``barred`` are models that no
    node of the kind may carry, ``features`` are asked of Slurm for each node."""

    key: str
    kind_name: str
    kind: NodeKind
    nodes: int
    nodes_per_cell: int
    min_nodes: int
    switches: str | None
    barred: frozenset[str] = frozenset()
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """The nodes of one group in one cell."""

    group: Group
    nodes: int
    min_nodes: int


@dataclass(frozen=True, slots=True)
class HeadNode:
    """The node kind of the head, and what is asked for it."""

    kind_name: str
    kind: NodeKind
    cpus: int
    mem_gib: float


def layout_of(site: Site) -> Layout:
    """Heterogeneous job, ordinary job, or no job at all."""
    if site.scheduler == "local":
        return "local"
    return "het" if site.slurm.hetjobs else "single"


def groups_of(spec: Spec, site: Site, findings: Findings) -> list[Group]:
    """The worker groups; what cannot be is reported."""
    groups = []
    for index, workers in enumerate(spec.workers):
        key = f"workers[{index}]"
        name = workers.kind or _default_worker_kind(site)
        kind = site.node_kinds.get(name)
        if kind is None:
            findings.add(_unknown_kind(spec, site, f"{key}.kind", name))
            continue
        if workers.min_nodes is not None and workers.min_nodes > workers.nodes:
            findings.add(
                spec.problem(
                    f"{key}.min_nodes", f"{workers.min_nodes} is more than nodes, {workers.nodes}"
                )
            )
            continue
        per_cell = workers.nodes_per_cell or site.workers.nodes_per_cell or workers.nodes
        groups.append(
            Group(
                key=key,
                kind_name=name,
                kind=kind,
                nodes=workers.nodes,
                nodes_per_cell=min(per_cell, workers.nodes),
                min_nodes=workers.min_nodes or workers.nodes,
                switches=workers.switches,
            )
        )
    layout = layout_of(site)
    if layout == "local" and (len(groups) > 1 or any(group.nodes > 1 for group in groups)):
        findings.add(
            spec.problem("workers", f"site {site.name} is one machine: one node of one kind")
        )
    if layout == "single" and len(groups) > 1:
        findings.add(
            spec.problem(
                "workers",
                f"{len(groups)} kinds of node asked, but site {site.name} has no heterogeneous "
                "jobs (slurm.hetjobs: false): use one kind, or one deployment for each",
            )
        )
    return groups


def head_of(spec: Spec, site: Site, groups: Sequence[Group], findings: Findings) -> HeadNode | None:
    """The head's node kind and resources; what cannot be is reported."""
    layout = layout_of(site)
    name = spec.head.kind or site.head.kind or _default_head_kind(site, groups)
    if layout != "het" and groups:
        if spec.head.kind is not None and spec.head.kind != groups[0].kind_name:
            findings.add(
                spec.problem(
                    "head.kind",
                    f"{spec.head.kind} asked, but on site {site.name} a worker node carries the "
                    f"head: kind {groups[0].kind_name}",
                )
            )
            return None
        name = groups[0].kind_name
    kind = site.node_kinds.get(name)
    if kind is None:
        findings.add(_unknown_kind(spec, site, "head.kind", name))
        return None
    head = HeadNode(
        kind_name=name,
        kind=kind,
        cpus=spec.head.cpus or site.head.cpus,
        mem_gib=spec.head.mem_gib or site.head.mem_gib,
    )
    usable = kind.known_cores
    if usable is not None and head.cpus > usable:
        findings.add(spec.problem("head.cpus", f"{head.cpus} asked, node kind {name} has {usable}"))
    if kind.mem_gib is not None and head.mem_gib > kind.mem_gib:
        findings.add(
            spec.problem(
                "head.mem_gib", f"{head.mem_gib:g} asked, node kind {name} has {kind.mem_gib:g}"
            )
        )
    return head


def cells_of(groups: Sequence[Group]) -> list[list[Part]]:
    """The parts of each cell: as few cells as ``nodes_per_cell`` allows, the nodes of every
    group spread over them evenly, so that no cell is much smaller than the others."""
    count = max(-(-group.nodes // group.nodes_per_cell) for group in groups)
    cells: list[list[Part]] = []
    for index in range(count):
        parts = []
        for group in groups:
            base, more = divmod(group.nodes, count)
            nodes = base + (index < more)
            if nodes:
                least = max(1, -(-group.min_nodes * nodes // group.nodes))
                parts.append(Part(group, nodes, least))
        cells.append(parts)
    return cells


def _default_worker_kind(site: Site) -> str:
    if site.workers.kind is not None:
        return site.workers.kind
    with_gpus = [name for name, kind in site.node_kinds.items() if kind.gpus]
    return (with_gpus or list(site.node_kinds))[0]


def _default_head_kind(site: Site, groups: Sequence[Group]) -> str:
    without = [name for name, kind in site.node_kinds.items() if not kind.gpus]
    return without[0] if without or not groups else groups[0].kind_name


def _unknown_kind(spec: Spec, site: Site, key: str, name: str) -> Problem:
    return spec.problem(
        key, f"site {site.name} has no node kind {name!r}{nearest(name, site.node_kinds)}"
    )
