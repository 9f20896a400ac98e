"""``rollout`` and ``rollback``: what a person asks for; the supervisor does the rest."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from exaslurm.core.plan import Plan
from exaslurm.core.rollout import Rollout, RolloutPolicy
from exaslurm.core.sharing import share
from exaslurm.core.turns import cell_of
from exaslurm.core.versions import differing, versions_of
from exaslurm.errors import DeploymentError
from exaslurm.rollout import records
from exaslurm.rollout.machine import lanes, undone_for
from exaslurm.rundir import GenerationDir, RunDir
from exaslurm.slurm.client import Slurm
from exaslurm.spec.load import load_spec
from exaslurm.spec.model import Rollout as SpecRollout
from exaslurm.submit.lock import deployment_lock
from exaslurm.submit.records import (
    add_history,
    read_plan,
    read_submissions,
)
from exaslurm.submit.submit import (
    make_plan_for,
    run_dir_for,
    template_dirs_for,
    write_generation,
)
from exaslurm.submit.survey import Surveyor
from exaslurm.submit.talk import Talk, quiet
from exaslurm.util.files import read_text
from exaslurm.util.user import user_and_home

# Back to what has proved itself: all at once, and watched for a while.
_BACK = RolloutPolicy(steps_percent=(100.0,), hold_s=60.0, min_requests=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A rollout that is under way from now on. ``undone``: one that was under way is taken back,
    and there is no new one."""

    run_dir: RunDir
    plan: Plan
    rollout: Rollout
    undone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """What the command line says about the policy; None: as the spec says."""

    steps_percent: tuple[float, ...] | None = None
    hold_s: float | None = None
    min_requests: int | None = None
    surge: int | None = None

    def over(self, policy: RolloutPolicy) -> RolloutPolicy:
        """The policy with these values in place of its own."""
        given = {
            "steps_percent": self.steps_percent,
            "hold_s": self.hold_s,
            "min_requests": self.min_requests,
            "surge": self.surge,
        }
        return replace(policy, **{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]


def rollout(
    spec_path: Path,
    *,
    text: str | None = None,
    site: str | None = None,
    options: PolicyOptions | None = None,
    environ: Mapping[str, str] | None = None,
    talk: Talk = quiet,
    slurm: Slurm | None = None,
) -> Started:
    """Bring the deployment of a spec that runs with another one over to this one.

    Returns when that is written down; the supervisor does it. UserError (spec, site, plan),
    DeploymentError if it cannot be done now: nothing runs, it runs already, another rollout is
    under way, or the spec is for another site. QueryFailed if Slurm gives no answer.
    """
    environ = dict(os.environ if environ is None else environ)
    plan = make_plan_for(spec_path, text=text, site=site, environ=environ)
    policy = _policy(load_spec(spec_path, text).rollout)
    run_dir = run_dir_for(plan, environ, site=site)
    dirs = template_dirs_for(plan, environ, site=site)
    return _Start(run_dir.require(), dirs, talk, slurm or Slurm(environ), environ).begin(
        plan,
        read_text(spec_path) if text is None else text,
        (options or PolicyOptions()).over(policy),
        verb="rollout",
    )


def rollback(
    run_dir: RunDir,
    *,
    to: int | None = None,
    options: PolicyOptions | None = None,
    environ: Mapping[str, str] | None = None,
    talk: Talk = quiet,
    slurm: Slurm | None = None,
) -> Started:
    """Take back the rollout that is under way; or else bring the deployment over to the generation
    before the last rollout, or ``to`` that one, with the plan that it had.

    Errors as of ``rollout``.
    """
    environ = dict(os.environ if environ is None else environ)
    found = run_dir.require().read_rollout()
    desired = run_dir.read_desired()
    if found is not None and desired is not None and found.concerns(desired.generation):
        if to is not None and to != found.stable:
            raise DeploymentError(
                f"{run_dir.deployment} is going over to generation {found.candidate}",
                remedy=f"'exaslurm rollback {run_dir.deployment}' alone takes that back first",
            )
        return _take_back(run_dir)
    if to is None:
        if found is None or found.state != "done":
            raise DeploymentError(
                f"there is nothing to take back: {run_dir.deployment} runs as it did before its "
                "last rollout"
                if found
                else f"{run_dir.deployment} has had no rollout",
                remedy=f"'exaslurm history {run_dir.deployment}' shows its generations; "
                "'--to N' brings one of them back",
            )
        if desired is None or desired.generation != found.candidate:
            raise DeploymentError(
                f"there is nothing to take back: {run_dir.deployment} was submitted anew since its "
                f"last rollout (to generation {found.candidate})",
                remedy=f"'exaslurm history {run_dir.deployment}' shows its generations; "
                "'--to N' brings one of them back",
            )
        to = found.stable
    generation = run_dir.generation(to)
    plan = read_plan(generation) if to in run_dir.generations() else None
    if plan is None:
        raise DeploymentError(
            f"{run_dir.deployment} has no generation {to} that could run",
            remedy=f"it has {', '.join(map(str, run_dir.generations())) or 'none'}",
        )
    dirs = template_dirs_for(plan, environ)
    return _Start(run_dir, dirs, talk, slurm or Slurm(environ), environ).begin(
        plan,
        read_text(generation.spec),
        (options or PolicyOptions()).over(_BACK),
        verb="rollback",
        extra={"to": str(to)},
    )


def _policy(spec: SpecRollout) -> RolloutPolicy:
    return RolloutPolicy(
        steps_percent=spec.steps_percent,
        hold_s=spec.hold_s,
        min_requests=spec.min_requests,
        surge=spec.surge,
        slower=spec.slower,
        failures=spec.failures,
        by=spec.by,
    )


def _take_back(run_dir: RunDir) -> Started:
    with deployment_lock(run_dir):
        found, desired = run_dir.read_rollout(), run_dir.read_desired()
        # Where the new one is wanted already, all that is left is to say that it is done.
        if found is None or desired is None or found.is_over or desired.generation != found.stable:
            raise DeploymentError(
                f"the rollout of {run_dir.deployment} has just ended",
                remedy="look at it with 'exaslurm status' first",
            )
        old, new = _plan(run_dir, found.stable), _plan(run_dir, found.candidate)
        if found.state != "undoing":
            user = user_and_home(os.environ)[0]
            found = undone_for(found, f"{user} has taken it back")
            found = replace(found, lanes=lanes(found))
            add_history(
                run_dir,
                "rollback",
                generation=found.candidate,
                plan_hash=new.hash,
                extra={"to": str(found.stable)},
            )
            records.write_rollout(run_dir, found)
        return Started(run_dir=run_dir, plan=old, rollout=found, undone=True)


def _plan(run_dir: RunDir, number: int) -> Plan:
    plan = read_plan(run_dir.generation(number))
    if plan is None:
        raise DeploymentError(
            f"generation {number} of {run_dir.deployment} has no plan",
            remedy=f"look into {run_dir.generation(number).path}",
        )
    return plan


@dataclass(frozen=True, slots=True)
class _Start:
    run_dir: RunDir
    template_dirs: Sequence[Path]
    talk: Talk
    slurm: Slurm
    environ: Mapping[str, str]

    def begin(
        self,
        plan: Plan,
        spec_text: str,
        policy: RolloutPolicy,
        *,
        verb: str,
        extra: Mapping[str, str] | None = None,
    ) -> Started:
        with deployment_lock(self.run_dir):
            stable = self._running(plan)
            old = _plan(self.run_dir, stable)
            self._check(old, plan, stable)
            generation = self._next()
            write_generation(self.run_dir, generation, plan, spec_text, self.template_dirs)
            begun = Rollout(
                stable=stable,
                candidate=generation.number,
                state="rising",
                policy=policy,
                names=differing(old, plan),
                by=user_and_home(self.environ)[0],
                begun_s=round(time.time(), 3),
                divided_by=records.read_canary(self.run_dir).by,
                lanes={cell.name: () for each in (old, plan) for cell in each.cells},
                stable_cells=self._wanted(old, stable),
                candidate_cells=self._wanted(plan, stable),
            )
            begun = replace(begun, lanes=lanes(begun))
            add_history(
                self.run_dir,
                verb,
                generation=generation.number,
                plan_hash=plan.hash,
                extra={"from": str(stable), **_what(begun), **(extra or {})},
            )
            records.write_rollout(self.run_dir, begun)
        self._remark(old, plan, begun)
        return Started(run_dir=self.run_dir, plan=plan, rollout=begun)

    def _running(self, plan: Plan) -> int:
        """The generation that runs. DeploymentError if none does, or a rollout is under way."""
        name = self.run_dir.deployment
        desired = self.run_dir.read_desired()
        if desired is None or not desired.run:
            raise DeploymentError(
                f"deployment {name!r} does not run, so there is nothing to change",
                remedy="'exaslurm submit SPEC' starts it with this spec",
            )
        found = self.run_dir.read_rollout()
        if found is not None and found.concerns(desired.generation):
            raise DeploymentError(
                f"deployment {name!r} is going over from generation {found.stable} to "
                f"{found.candidate} already",
                remedy=f"'exaslurm status {name}' shows how far it is; "
                f"'exaslurm rollback {name}' takes it back",
            )
        if plan.layout == "local":
            raise DeploymentError(
                f"deployment {name!r} runs without Slurm: there is no place for two of it",
                remedy=f"'exaslurm stop {name}', then submit the new spec",
            )
        surveys = Surveyor(self.run_dir, lambda: self.slurm, self.talk).survey()
        if not any(each.cells("alive", "unknown") for each in surveys):
            raise DeploymentError(
                f"no job of deployment {name!r} runs, so there is nothing to change",
                remedy=f"'exaslurm stop {name}', then 'exaslurm submit SPEC', starts it with this "
                "spec",
            )
        return desired.generation

    def _wanted(self, plan: Plan, stable: int) -> tuple[str, ...]:
        """The cells of a plan that are wanted for the load there is now; one at least."""
        known = read_submissions(self.run_dir.generation(stable)).values()
        living = {cell_of(item.cell) for item in known if item.state == "submitted"}
        wanted = share(plan, self.run_dir.read_scale(), living)
        names = [cell.name for cell in plan.cells]
        return tuple(name for name in names if name in wanted) or tuple(names[:1])

    def _check(self, old: Plan, new: Plan, stable: int) -> None:
        """DeploymentError where one cannot take the place of the other."""
        name = self.run_dir.deployment
        if new.hash == old.hash:
            raise DeploymentError(
                f"deployment {name!r} runs with this spec already (generation {stable})",
                remedy="what is only in the spec's 'rollout:' section changes nothing by itself",
            )
        if (new.site, new.layout) != (old.site, old.layout):
            raise DeploymentError(
                f"deployment {name!r} runs on site {old.site!r} ({old.layout} jobs), the spec is "
                f"for {new.site!r} ({new.layout})",
                remedy="give it another 'deployment:' name and submit it there",
            )

    def _next(self) -> GenerationDir:
        """The next generation; one that a killed rollout left, of which nothing was submitted, is
        written anew."""
        last = self.run_dir.generations()[-1]
        desired = self.run_dir.read_desired()
        assert desired is not None
        found = self.run_dir.read_rollout()
        used = last == desired.generation or (found is not None and found.candidate == last)
        if used or read_submissions(self.run_dir.generation(last)):
            last += 1
        return self.run_dir.generation(last)

    def _remark(self, old: Plan, new: Plan, begun: Rollout) -> None:
        """What of the change is not as one might think."""
        if not begun.names:
            self.talk(
                "no served name changes its version: cells go over one by one, without shares"
            )
        before, after = versions_of(old), versions_of(new)
        for name in sorted(before.keys() - after.keys()):
            self.talk(f"{name} is not served any more when the last cell has gone over")
        for name in sorted(after.keys() - before.keys()):
            self.talk(f"{name} is new: it is served as soon as its first cell is")
        if old.gateway != new.gateway:
            self.talk(
                "what is new under 'gateway:' counts when gateways are started again "
                "('exaslurm gateway --replace', or SIGHUP)"
            )
        if not self.run_dir.supervisor.exists():
            self.talk(
                "no supervisor has looked after this deployment yet: nothing happens until one "
                f"does ('exaslurm supervise {self.run_dir.deployment}')"
            )


def _what(begun: Rollout) -> dict[str, str]:
    return {name: f"{old} -> {new}" for name, (old, new) in sorted(begun.names.items())}
