"""Faults on purpose at a deployment, with a load meanwhile."""

from __future__ import annotations

import contextlib
import http.client
import random
import re
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from exaslurm.api.endpoint import reachable_endpoint
from exaslurm.chaos.faults import Fault, Options
from exaslurm.chaos.gateways import read_supervisor, router_victims, supervisor_victim
from exaslurm.chaos.kinds import BY_NAME, Kind
from exaslurm.chaos.load import Load, LoadPlan
from exaslurm.chaos.reach import CommandFailed, Reach, owner_of
from exaslurm.chaos.run import Report, Run, Timing, parts_of
from exaslurm.chaos.undo import Mending, mend_all
from exaslurm.chaos.victims import Victim, Wanted, choose
from exaslurm.core import codec
from exaslurm.core.plan import Plan
from exaslurm.core.submission import RouterAddress
from exaslurm.errors import DeploymentError, ExaslurmError, NotReadyError, UserError
from exaslurm.rundir import RunDir
from exaslurm.site.load import load_site
from exaslurm.site.model import Site
from exaslurm.slurm.client import Slurm
from exaslurm.status.collect import Collector
from exaslurm.util.files import read_text
from exaslurm.util.reach import connect, only_this

_HTTP_S = 5.0
_SLURM_S = 5.0
_RETRIES = re.compile(rb"^exaslurm_router_retries_total\{[^}]*\} ([0-9.e+]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What ``exaslurm chaos`` was asked for. ``seed`` chooses the victim where it is not named;
    ``not_a_lab``: it is known that people may depend on the machine."""

    fault: str
    wanted: Wanted = field(default_factory=Wanted)
    options: Options = field(default_factory=Options)
    timing: Timing = field(default_factory=Timing)
    load: LoadPlan = field(default_factory=lambda: LoadPlan(model=""))
    seed: int = 0
    not_a_lab: bool = False


async def run_chaos(
    run_dir: RunDir,
    order: Order,
    environ: Mapping[str, str],
    key: str,
    talk: Callable[[str], None],
) -> Report:
    """Do it. UserError where it may not, or cannot, be done; NotReadyError if the deployment does
    not serve to begin with."""
    kind = BY_NAME[order.fault]
    plan = _plan_of(run_dir)
    reach = _reach(run_dir, plan, environ)
    if not reach.chaos.lab and not order.not_a_lab:
        raise UserError(
            f"site {plan.site} is no lab: what is broken here may be somebody's work",
            remedy="--this-is-not-a-lab does it nevertheless; see docs/howto/chaos.md",
        )
    router = reachable_endpoint(run_dir)
    # Slurm itself may be what is broken: its part of the status is not waited for.
    slurm = None if plan.layout == "local" else Slurm(environ, timeout_s=_SLURM_S, pause_s=0.5)
    collector = Collector(run_dir, slurm)
    status = collector.collect()
    if status.replicas_ready == 0:
        raise NotReadyError(
            f"no replica of {run_dir.deployment} is ready: nothing can be learned from a fault",
            remedy=f"exaslurm status {run_dir.deployment}",
        )
    rng = random.Random(order.seed)
    victims = choose(kind, status, order.wanted, rng) or _of_gateway(kind, run_dir, router)
    fault = Fault(
        kind=kind,
        reach=reach,
        run_dir=run_dir.path,
        victims=victims,
        options=order.options,
        token=secrets.token_hex(4),
    )
    fault.check()
    model = order.load.model or plan.models[0].shards[0].served_names[0]
    load = Load(
        replace(order.load, model=model),
        address=lambda: reachable_endpoint(run_dir).base_url,
        key=key,
        tls=only_this(router.certificate) if router.certificate else None,
        reconnects=kind.hits == "router",
    )
    talk(f"{kind.name} at {', '.join(victim.name for victim in victims)}: {kind.does}")
    run = Run(
        fault=fault,
        load=load,
        mending=Mending(run_dir, kind.name, reach.run),
        timing=order.timing,
        look=collector.collect,
        processes=lambda: _processes(fault, run_dir),
        retries=lambda: _retries(run_dir, key),
        talk=talk,
    )
    return await run.go()


def mend_chaos(run_dir: RunDir, environ: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Mend what earlier runs have left broken: what was, and what could not be."""
    return mend_all(run_dir, _reach(run_dir, _plan_of(run_dir), environ).run)


def _reach(run_dir: RunDir, plan: Plan, environ: Mapping[str, str]) -> Reach:
    site: Site = load_site(plan.site, environ)
    return Reach(chaos=site.chaos, plan=plan, uid=owner_of(run_dir.path), environ=dict(environ))


def _plan_of(run_dir: RunDir) -> Plan:
    desired = run_dir.read_desired()
    generation = run_dir.latest() if desired is None else run_dir.generation(desired.generation)
    if generation is None or not generation.plan.exists():
        raise DeploymentError(f"{run_dir.path} holds no plan", remedy="submit it first")
    return codec.loads(Plan, read_text(generation.plan), where=str(generation.plan))


def _of_gateway(kind: Kind, run_dir: RunDir, router: RouterAddress) -> tuple[Victim, ...]:
    if kind.hits == "supervisor":
        return (supervisor_victim(run_dir),)
    return router_victims(router)


def _processes(fault: Fault, run_dir: RunDir) -> dict[str, int]:
    """Pids of what the fault ends and what has to come back."""
    if fault.kind.hits == "router":
        return _serving(fault, run_dir)
    if fault.kind.hits == "supervisor":
        notes = read_supervisor(run_dir)
        return {} if notes is None else {"supervisor": notes.pid}
    parts = parts_of(fault.kind.name)
    if not parts:
        return {}
    try:
        found = fault.find(fault.victims[0])
    except CommandFailed:
        return {}
    return {name: found[name] for name in parts if name in found}


def _serving(fault: Fault, run_dir: RunDir) -> dict[str, int]:
    """Workers of the router by their place; nothing where none serves."""
    try:
        victims = router_victims(reachable_endpoint(run_dir))
    except NotReadyError:
        return {}
    here = victims[0].host == socket.gethostname()
    if len(victims) < len(fault.victims) or not here:
        return {}
    return {f"router {n}": int(victim.pid or 0) for n, victim in enumerate(victims, start=1)}


def _retries(run_dir: RunDir, key: str) -> int | None:
    """How many requests the router has sent to another replica so far; None: it does not say."""
    try:
        router = reachable_endpoint(run_dir)
        connection = connect(router.url, certificate=router.certificate, timeout_s=_HTTP_S)
        with contextlib.closing(connection):
            connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {key}"})
            text = connection.getresponse().read()
    except (OSError, http.client.HTTPException, ValueError, ExaslurmError):
        return None
    return round(sum(float(found) for found in _RETRIES.findall(text)))
