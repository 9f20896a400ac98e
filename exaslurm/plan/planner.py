"""From spec and site to a plan: everything that can be decided before there are nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from exaslurm.core.plan import (
    CellPlan,
    ComponentPlan,
    Layout,
    Plan,
    PortPolicy,
    RayPlan,
    Role,
    TimeoutPlan,
)
from exaslurm.errors import PlanError
from exaslurm.plan.ceilings import check_locks, check_totals
from exaslurm.plan.cells import HeadNode, Part, cells_of, groups_of, head_of, layout_of
from exaslurm.plan.conditions import check_conditions, conditioned
from exaslurm.plan.context import Findings, PlanContext
from exaslurm.plan.directives import Ask, JobOptions, directives, job_options
from exaslurm.plan.gateway import gateway_plan
from exaslurm.plan.node import node_environment
from exaslurm.plan.notes import note_site, note_unused
from exaslurm.plan.scaling import scale_notes, scaling
from exaslurm.plan.slots import Reserve, model_plan
from exaslurm.plan.split import check_ray
from exaslurm.plan.spread import FilledCell, Ground, Load, spread
from exaslurm.plan.survival import check_spread, survival_of
from exaslurm.site.model import Site
from exaslurm.spec.model import Spec

__all__ = ["PlanContext", "make_plan"]


def make_plan(spec: Spec, site: Site, context: PlanContext) -> Plan:
    """The sealed plan of a deployment. Pure: equal arguments give equal plans.

    Raises PlanError with every reason why site and spec do not fit together, one a line, each
    naming file, line and key of the spec.
    """
    findings = Findings()
    check_locks(spec, site, findings)
    layout = layout_of(site)
    groups = groups_of(spec, site, findings)
    head = head_of(spec, site, groups, findings)
    findings.stop_if_any()
    if head is None:
        raise PlanError(f"{spec.where('head')}: head: no node kind fits")
    # With an ordinary job the first node of a cell is its head too, in place of an agent's and
    # Ray's usual share, and Slurm gives every node of a job the same.
    shared = layout != "het"
    reserve = Reserve(
        cores=max(site.service.cores, head.cpus if shared else 0),
        mem_gib=max(site.service.mem_gib, head.mem_gib if shared else 0.0),
        service_gib=site.service.mem_gib,
    )
    models = tuple(
        model_plan(spec, index, groups, reserve, context, findings)
        for index in range(len(spec.models))
    )
    check_ray(spec, models, site.slurm.ray.enabled if spec.ray is None else spec.ray, findings)
    check_conditions(spec, groups, findings)
    findings.stop_if_any()
    cells = cells_of(conditioned(groups, models))
    survival = survival_of(spec)
    ground = Ground(
        cells=cells,
        reserve_gib=site.service.mem_gib,
        head_gib=head.mem_gib if shared else 0.0,
        survival=survival,
    )
    filled = spread(spec, models, ground, findings)
    proof = check_spread(spec, filled, survival, layout, findings)
    # Without Slurm, what its variables say must not make another plan of the same spec.
    defaults = {} if layout == "local" else context.environ_defaults
    options = job_options(spec, site, defaults, findings)
    planned = tuple(
        CellPlan(
            name=f"c{index:03d}",
            index=index,
            components=_components(layout, parts, cell, head, spec, site, options, findings),
            replica_sets=cell.replica_sets(models),
        )
        for index, (parts, cell) in enumerate(zip(cells, filled, strict=True))
    )
    check_totals(spec, site, planned, findings)
    gateway = gateway_plan(spec, site, context, options, layout, findings)
    node = node_environment(spec, site, models, options.account, context, findings)
    autoscale = scaling(spec, models, findings)
    note_unused(spec, findings)
    note_site(site, findings)
    findings.stop_if_any()
    plan = Plan(
        deployment=spec.deployment,
        site=site.name,
        layout=layout,
        models=models,
        cells=planned,
        node=node,
        ports=PortPolicy(first=site.ports.first, last=site.ports.last, block=site.ports.block),
        ray=RayPlan(
            enabled=site.slurm.ray.enabled if spec.ray is None else spec.ray,
            start_timeout_s=site.timeouts.ray_s,
            object_store_mib=site.slurm.ray.object_store_mib,
        ),
        timeouts=TimeoutPlan(
            nodes_s=site.timeouts.nodes_s,
            stage_s=site.timeouts.stage_s,
            ready_s=site.timeouts.ready_s,
            drain_s=site.timeouts.drain_s,
            hung_s=site.timeouts.hung_s,
            stall_s=site.timeouts.stall_s,
        ),
        gateway=gateway,
        srun_args=tuple(f"--{text.removeprefix('--')}" for text in site.slurm.srun_args),
        poll_floor_s=site.slurm.poll_floor_s,
        survival=survival,
        switches=dict(site.switches),
        spread=proof.sentences(),
        weak={weak.shard: len(weak.lost) for weak in proof.weak if weak.thing == "nodes"},
        autoscale=autoscale,
        notes=tuple(findings.notes),
    )
    return replace(plan, notes=(*scale_notes(plan), *plan.notes)).sealed()


def _components(
    layout: Layout,
    parts: Sequence[Part],
    cell: FilledCell,
    head: HeadNode,
    spec: Spec,
    site: Site,
    options: JobOptions,
    findings: Findings,
) -> tuple[ComponentPlan, ...]:
    components = []
    if layout == "het":
        ask = _head_ask(head, site)
        words = directives(ask, spec, site, options, findings)
        components.append(_component(0, "head", head.kind_name, ask, 1, words))
    for part, load in zip(parts, cell.loads, strict=True):
        ask = _worker_ask(part, load, head if layout != "het" else None, site)
        role: Role = "worker" if layout == "het" else "both"
        words = () if layout == "local" else directives(ask, spec, site, options, findings)
        components.append(
            _component(len(components), role, part.group.kind_name, ask, part.min_nodes, words)
        )
    return tuple(components)


def _component(
    het_group: int,
    role: Role,
    kind: str,
    ask: Ask,
    min_nodes: int,
    words: tuple[tuple[str, str | None], ...],
) -> ComponentPlan:
    return ComponentPlan(
        het_group=het_group,
        role=role,
        kind=kind,
        nodes=ask.nodes,
        min_nodes=min_nodes,
        cpus_per_node=ask.cpus,
        mem_mib_per_node=ask.mem_mib,
        gpus_per_node=ask.gpus,
        directives=words,
        kind_gpus=ask.kind.known_gpus,
        kind_cores=ask.kind.known_cores,
        reserved_cpus=ask.kind.reserved_cores,
    )


def _head_ask(head: HeadNode, site: Site) -> Ask:
    kind = head.kind
    cpus, mem_gib = head.cpus, head.mem_gib
    if kind.is_whole(1):
        cpus = kind.known_cores or cpus
        mem_gib = kind.mem_gib or mem_gib
    return Ask(
        kind=kind,
        nodes=1,
        cpus=cpus,
        mem_mib=_asked_mem(site, round(mem_gib * 1024)),
        gpus=1 if kind.require_gpus else 0,
        is_head=True,
        switches=None,
    )


def _worker_ask(part: Part, load: Load, head: HeadNode | None, site: Site) -> Ask:
    """Whole nodes where the site gives only those, else what the fullest node needs, so that
    others can use the rest."""
    group, kind = part.group, part.group.kind
    most_cpus, most_mib = kind.known_cores, None
    if kind.mem_gib is not None:
        most_mib = round(kind.mem_gib * 1024)
    extra_cpus = max(site.service.cores, head.cpus if head else 0)
    extra_gib = max(site.service.mem_gib, head.mem_gib if head else 0.0)
    cpus = max(1, load.cores + extra_cpus)
    mem_mib = load.mem_mib + round(extra_gib * 1024)
    gpus = load.gpus or int(kind.require_gpus)
    if kind.is_whole(part.nodes):
        cpus, mem_mib = most_cpus or cpus, most_mib or mem_mib
        gpus = kind.gpus or gpus
    return Ask(
        kind=kind,
        nodes=part.nodes,
        cpus=cpus if most_cpus is None else min(cpus, most_cpus),
        mem_mib=_asked_mem(site, mem_mib if most_mib is None else min(mem_mib, most_mib)),
        gpus=gpus,
        is_head=False,
        switches=group.switches,
        features=group.features,
    )


def _asked_mem(site: Site, mem_mib: int) -> int | None:
    return mem_mib if site.slurm.memory == "per_node" else None
