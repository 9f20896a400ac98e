"""Saying how many replicas of a shard there shall be."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from exaslurm.core.plan import Plan
from exaslurm.core.scale import Scale
from exaslurm.core.sharing import at_start, planned, share
from exaslurm.errors import DeploymentError, UserError
from exaslurm.keys.secrets import read_secret
from exaslurm.registry.client import post_targets
from exaslurm.registry.read import read_records
from exaslurm.rundir import GenerationDir, RunDir
from exaslurm.submit import records
from exaslurm.submit.lock import deployment_lock
from exaslurm.util.user import user_and_home
from exaslurm.util.yaml_lines import nearest

_HTTP_S = 5.0


def scale(
    run_dir: RunDir,
    wanted: Mapping[str, int],
    *,
    auto: Sequence[str] = (),
    environ: Mapping[str, str],
) -> Scale:
    """Have so many replicas of each of these shards (``model:shard``, or a model with one shard);
    they are no longer scaled automatically. Those in ``auto`` are again.

    Returns what is wanted now; it takes a supervisor to come about. DeploymentError if the
    deployment does not run (or on another host, without Slurm), UserError for a shard that is not
    there, or a number beyond its limits.
    """
    run_dir.require()
    with deployment_lock(run_dir):
        generation, plan = _running(run_dir)
        records.require_here(generation, socket.gethostname())
        before = run_dir.read_scale() or at_start(plan) or Scale()
        counts = {_shard(plan, name): count for name, count in wanted.items()}
        given_back = {_shard(plan, name) for name in auto}
        for name, count in counts.items():
            _check(plan, name, count)
        if given_back and plan.autoscale is None:
            raise UserError(
                f"{run_dir.deployment} is not scaled automatically",
                remedy="that takes 'autoscale:' in its spec, and 'exaslurm rollout'",
            )
        fixed = (set(before.fixed) | set(counts)) - given_back
        after = replace(
            before,
            replicas={**before.replicas, **counts},
            fixed=tuple(sorted(fixed)) if plan.autoscale is not None else (),
        )
        records.write_scale(run_dir, after)
        most = planned(plan)
        for name in sorted({*counts, *given_back}):
            records.add_history(
                run_dir,
                "scale",
                generation=generation.number,
                plan_hash=plan.hash,
                extra={
                    "by": user_and_home(environ)[0],
                    "shard": name,
                    "replicas": str(after.replicas.get(name, most[name])),
                    "before": str(before.replicas.get(name, most[name])),
                    "reason": "asked for" if name in counts else "scaled automatically again",
                },
            )
    if plan.layout == "local":
        _tell_controllers(run_dir, plan, after)
    return after


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How many replicas of a shard are wanted, within which limits, and whether that is changed
    automatically."""

    name: str
    wanted: int
    least: int
    most: int
    automatic: bool


def wanted_now(run_dir: RunDir) -> tuple[Wanted, ...]:
    """How many replicas of each shard are wanted. DeploymentError if the deployment does not
    run."""
    _, plan = _running(run_dir.require())
    scale = run_dir.read_scale() or at_start(plan) or Scale()
    found = []
    for name, most in planned(plan).items():
        shard = plan.autoscale.shards[name] if plan.autoscale is not None else None
        sleeps = plan.autoscale is not None and plan.autoscale.idle_s is not None
        found.append(
            Wanted(
                name=name,
                wanted=min(scale.replicas.get(name, most), most),
                least=0 if sleeps or shard is None else shard.least,
                most=most,
                automatic=shard is not None and name not in scale.fixed,
            )
        )
    return tuple(found)


def _running(run_dir: RunDir) -> tuple[GenerationDir, Plan]:
    desired = run_dir.read_desired()
    if desired is None or not desired.run:
        raise DeploymentError(
            f"deployment {run_dir.deployment!r} is stopped", remedy="exaslurm submit starts it"
        )
    generation = run_dir.generation(desired.generation)
    plan = records.read_plan(generation)
    if plan is None:
        raise DeploymentError(f"{generation.path} holds no plan", remedy="submit it again")
    return generation, plan


def _shard(plan: Plan, name: str) -> str:
    """The full name of a shard; UserError if there is none."""
    known = {f"{model.name}:{shard.name}" for model in plan.models for shard in model.shards}
    if name in known:
        return name
    for model in plan.models:
        if name == model.name and len(model.shards) == 1:
            return f"{name}:{model.shards[0].name}"
    raise UserError(f"no shard {name!r} in {plan.deployment}{nearest(name, known)}")


def _check(plan: Plan, name: str, count: int) -> None:
    least, most, why_most = 0, planned(plan)[name], "the plan has room for no more"
    why_least = ""
    if plan.autoscale is not None:
        shard = plan.autoscale.shards[name]
        why_most = "autoscale.max of the spec, or the shard's own"
        if plan.autoscale.idle_s is None or count > 0:
            least, why_least = max(1, shard.least), "autoscale.min of the spec, or the shard's own"
    if count > most:
        raise UserError(f"{name}: {count} asked, at most {most}", remedy=why_most)
    if count < least:
        raise UserError(f"{name}: {count} asked, at least {least}", remedy=why_least)


def _tell_controllers(run_dir: RunDir, plan: Plan, scale: Scale) -> None:
    """Where no supervisor does it. RegistryError if a controller gives no answer."""
    key = read_secret(run_dir.internal_key)
    cells = [cell.name for cell in plan.cells]
    shares = share(plan, scale, frozenset(cells))
    for record in read_records(run_dir):
        if record.cell in cells:
            none = dict.fromkeys(planned(plan), 0)
            counts = shares.get(record.cell, none)
            post_targets(record.state_url, key, counts, timeout_s=_HTTP_S)
