"""Where the gateway runs and listens; where it runs in a job, what that job asks for."""

from __future__ import annotations

import dataclasses

from exaslurm.core.limits import Limits
from exaslurm.core.plan import (
    NODE_ADDRESS,
    ComponentPlan,
    GatewayJobPlan,
    GatewayPlan,
    Layout,
    TlsPlan,
)
from exaslurm.plan.context import Findings, PlanContext
from exaslurm.plan.directives import Ask, Directives, JobOptions, directives
from exaslurm.plan.slots import spec_path
from exaslurm.site.model import NodeKind, Site
from exaslurm.spec.model import Spec
from exaslurm.util.loopback import is_loopback
from exaslurm.util.yaml_lines import nearest

# What a gateway needs to end beside the time for requests at hand.
_ENDING_S = 30


def gateway_plan(
    spec: Spec,
    site: Site,
    context: PlanContext,
    options: JobOptions,
    layout: Layout,
    findings: Findings,
) -> GatewayPlan:
    """The gateway that the spec asks for, within what the site allows; what cannot be is
    reported."""
    home = spec.gateway.home or site.gateway.homes[0]
    bind = spec.gateway.bind or site.gateway.bind
    job = None
    if home not in site.gateway.homes:
        allowed = ", ".join(site.gateway.homes)
        findings.add(
            spec.problem("gateway.home", f"{home} asked, site {site.name} allows {allowed}")
        )
    elif home == "job" and layout == "local":
        findings.add(spec.problem("gateway.home", f"job asked, but site {site.name} has no Slurm"))
    elif home == "job":
        job = _job(spec, site, options, findings)
        bind = _job_bind(spec, site, findings)
    return GatewayPlan(
        home=home,
        bind=bind,
        port=spec.gateway.port,
        start_with_submit=job is not None or (home == "login" and site.gateway.background),
        workers=spec.gateway.workers,
        tls=_tls(spec, context, findings),
        limits=Limits(**spec.gateway.limits.model_dump()),
        audit=spec.gateway.audit,
        audit_gib=spec.gateway.audit_gib,
        policy=spec.gateway.policy,
        hedge_after_s=spec.gateway.hedge_after_s,
        job=job,
    )


def _job_bind(spec: Spec, site: Site, findings: Findings) -> str:
    """A job's loopback address is of no use to anybody."""
    if spec.gateway.bind is not None:
        if is_loopback(spec.gateway.bind):
            text = f"{spec.gateway.bind} cannot be reached from outside of the gateway's job"
            findings.add(spec.problem("gateway.bind", text))
        return spec.gateway.bind
    if spec.gateway.tls is None:
        findings.note(
            "gateway.home: job: without gateway.tls, keys and prompts cross the network between "
            "nodes unencrypted"
        )
    return NODE_ADDRESS if is_loopback(site.gateway.bind) else site.gateway.bind


def _job(spec: Spec, site: Site, options: JobOptions, findings: Findings) -> GatewayJobPlan | None:
    name, kind = _kind(spec, site, findings)
    if kind is None:
        return None
    forbidden = {text.removeprefix("--") for text in site.slurm.forbidden_directives}
    skipped = {text.removeprefix("--") for text in spec.slurm.skip_directives}
    if "dependency" in forbidden | skipped:
        findings.add(
            spec.problem(
                "gateway.home",
                "job needs --dependency=singleton, which "
                + ("slurm.skip_directives takes away" if "dependency" in skipped else "is refused")
                + f" on site {site.name}: use {_others(site)}",
            )
        )
    rules = site.gateway
    cpus, mem_gib = max(rules.cpus, spec.gateway.workers + 1), rules.mem_gib
    if kind.is_whole(1):
        cpus, mem_gib = kind.known_cores or cpus, kind.mem_gib or mem_gib
    usable = kind.known_cores
    if usable is not None and cpus > usable:
        text = f"{cpus} CPUs for the gateway's job, node kind {name} has {usable}"
        findings.add(spec.problem("gateway.workers", text))
    mem_mib = round(mem_gib * 1024) if site.slurm.memory == "per_node" else None
    ask = Ask(kind=kind, nodes=1, cpus=cpus, mem_mib=mem_mib, gpus=0, is_head=True, switches=None)
    time_limit = spec.gateway.time_limit or options.time_limit
    words = directives(
        ask, spec, site, dataclasses.replace(options, time_limit=time_limit), findings
    )
    spares = rules.spares if spec.gateway.spares is None else spec.gateway.spares
    component = ComponentPlan(
        het_group=0,
        role="head",
        kind=name,
        nodes=1,
        min_nodes=1,
        cpus_per_node=cpus,
        mem_mib_per_node=mem_mib,
        gpus_per_node=0,
        directives=_of_gateway(words, round(site.timeouts.drain_s) + _ENDING_S),
        kind_gpus=kind.known_gpus,
        kind_cores=kind.known_cores,
        reserved_cpus=kind.reserved_cores,
    )
    return GatewayJobPlan(component=component, spares=spares)


def _of_gateway(words: Directives, warn_s: int) -> Directives:
    """The options of a cell's head, made those of a gateway: it finishes the requests at hand when
    it is told to end, and its one node is all of it."""
    changed = [
        (name, f"B:TERM@{warn_s}" if name == "signal" else value)
        for name, value in words
        if name not in ("no-kill", "dependency")
    ]
    return (*changed, ("dependency", "singleton"))


def _kind(spec: Spec, site: Site, findings: Findings) -> tuple[str, NodeKind | None]:
    """The site's for gateways, else the head's, else one without GPUs."""
    plain = [name for name, kind in site.node_kinds.items() if not kind.gpus]
    name = site.gateway.kind or site.head.kind or (plain or list(site.node_kinds))[0]
    kind = site.node_kinds.get(name)
    if kind is None:
        text = f"site {site.name} has no node kind {name!r}{nearest(name, site.node_kinds)}"
        findings.add(spec.problem("gateway.home", f"job asked: {text}"))
    elif kind.require_gpus:
        text = f"job asked, but nodes of kind {name} are given with GPUs only: use {_others(site)}"
        findings.add(spec.problem("gateway.home", text))
        return name, None
    return name, kind


def _others(site: Site) -> str:
    return " or ".join(home for home in site.gateway.homes if home != "job") or "another site"


def _tls(spec: Spec, context: PlanContext, findings: Findings) -> TlsPlan | None:
    given = spec.gateway.tls
    if given is None:
        return None
    return TlsPlan(
        cert=spec_path(spec, "gateway.tls.cert", given.cert, context, findings),
        key=spec_path(spec, "gateway.tls.key", given.key, context, findings),
    )
