"""A rollout, round by round of the supervisor.

Everything is in files: ``rollout.json`` says where it stands, and shares and lanes follow from
that. Killed anywhere, the next round finds what is missing and does it.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from exaslurm.core.plan import Plan
from exaslurm.core.rollout import Rollout, RolloutFigures
from exaslurm.rollout import records
from exaslurm.rollout.figures import count, pairs_of, to_compare
from exaslurm.rollout.judge import is_fair, why_worse
from exaslurm.rollout.machine import Seen, advance, shares
from exaslurm.rollout.routers import Said, ask_routers
from exaslurm.rollout.trouble import Job, Troubles
from exaslurm.rundir import RunDir
from exaslurm.submit.lock import deployment_lock
from exaslurm.submit.records import add_history, write_desired, write_scale

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """A deployment at one moment, as far as a rollout is concerned. ``generation`` is the wanted
    one; ``unclear``: generations of which it is not known whether a job was made; ``unneeded``:
    cells that the candidate would have a job in if there were load enough."""

    now_s: float
    generation: int
    rollout: Rollout
    plans: Mapping[int, Plan]
    jobs: Sequence[Job]
    unclear: frozenset[int] = frozenset()
    unneeded: frozenset[str] = frozenset()
    bring_up_s: float


@dataclass(slots=True, kw_only=True)
class RolloutManager:
    """Moves the rollout of one deployment on."""

    run_dir: RunDir
    ask: Callable[[RunDir], Said] = ask_routers
    _troubles: Troubles = field(default_factory=Troubles)

    def step(self, sight: Sight) -> bool:
        """Look, and write down what is wanted from now on; whether anything else is. StateError,
        DeploymentError (the lock is taken)."""
        rollout = sight.rollout
        if not rollout.concerns(sight.generation):
            return False
        figures = self._count(rollout, sight.now_s)
        seen = self._seen(rollout, sight, figures)
        after = advance(rollout, seen, sight.now_s)
        canary = records.read_canary(self.run_dir)
        if after == rollout and shares(after, canary) == canary:
            return False
        with deployment_lock(self.run_dir):
            if self.run_dir.read_rollout() != rollout:
                return True  # somebody has decided otherwise meanwhile
            desired = self.run_dir.read_desired()
            if desired is None or not desired.run or desired.generation != sight.generation:
                return True
            self._tell(rollout, after, sight.plans, figures)
            canary = records.read_canary(self.run_dir)
            if shares(after, canary) != canary:
                records.write_canary(self.run_dir, shares(after, canary))
            if after.state == "done":
                self._give_up_scaling(rollout, sight.plans)
                write_desired(self.run_dir, run=True, generation=after.candidate)
            if after != rollout:  # last of all: until then, all of it is done again
                records.write_rollout(self.run_dir, after)
        return True

    def _give_up_scaling(self, rollout: Rollout, plans: Mapping[int, Plan]) -> None:
        """Where nothing is scaled automatically any more, all that is planned is wanted again, but
        for what a person has said: else it stayed what there was to do for last."""
        before, after = plans[rollout.stable].autoscale, plans[rollout.candidate].autoscale
        scale = self.run_dir.read_scale()
        if before is None or after is not None or scale is None:
            return
        said = {name: scale.replicas[name] for name in scale.fixed if name in scale.replicas}
        write_scale(self.run_dir, replace(scale, replicas=said) if said else None)

    # --- what is seen --------------------------------------------------------------------------

    def _count(self, rollout: Rollout, now_s: float) -> RolloutFigures | None:
        """What routers have counted since the step began; None before there is anything to."""
        if rollout.state != "rising" or not rollout.names or not rollout.share_percent:
            return None
        before = records.read_figures(self.run_dir)
        said = self.ask(self.run_dir)
        pairs = {router: pairs_of(counts, rollout.names) for router, counts in said.counts.items()}
        after = count(before, rollout, pairs, said.started_s, said.silent, now_s)
        if after != before:
            records.write_figures(self.run_dir, after)
        return after

    def _seen(self, rollout: Rollout, sight: Sight, figures: RolloutFigures | None) -> Seen:
        stable = [job for job in sight.jobs if job.generation == rollout.stable]
        candidate = [job for job in sight.jobs if job.generation == rollout.candidate]
        serving = frozenset(job.cell for job in candidate if job.serves)
        trouble = None
        if rollout.state == "rising":
            trouble = self._troubles.find(candidate, sight.bring_up_s, sight.now_s)
        seen = Seen(
            serving=serving | sight.unneeded,
            stable_lives=any(job.lives for job in stable) or rollout.stable in sight.unclear,
            candidate_lives=any(job.lives for job in candidate)
            or rollout.candidate in sight.unclear,
            trouble=trouble,
        )
        if figures is None:
            return seen
        beside = len({job.cell for job in stable if job.serves})
        return replace(
            seen,
            worse=_worse(
                rollout, figures, fair=is_fair(rollout.share_percent, len(serving), beside)
            ),
            requests=sum(pair.new.requests for pair in figures.counted.values()),
        )

    # --- what is told --------------------------------------------------------------------------

    def _tell(
        self,
        before: Rollout,
        after: Rollout,
        plans: Mapping[int, Plan],
        figures: RolloutFigures | None,
    ) -> None:
        counted = figures.counted if figures is not None else {}
        told = {f"figures {name}": pair.sentence for name, pair in counted.items()}
        for verb, what in _events(before, after):
            extra = {**what, **told}
            log.info("%s: %s", verb, ", ".join(f"{k} {v}" for k, v in extra.items()) or "so it is")
            add_history(
                self.run_dir,
                verb,
                generation=after.candidate,
                plan_hash=plans[after.candidate].hash,
                extra={"by": f"supervisor {os.getpid()} on {socket.gethostname()}", **extra},
            )


def _worse(rollout: Rollout, figures: RolloutFigures, *, fair: bool) -> str | None:
    for name, pair in to_compare(figures).items():
        found = why_worse(name, pair, rollout.policy, fair=fair)
        if found is not None:
            return found
    return None


def _events(before: Rollout, after: Rollout) -> list[tuple[str, dict[str, str]]]:
    """What has happened, for the history."""
    found: list[tuple[str, dict[str, str]]] = []
    if after.state != before.state:
        reason = {"reason": after.reason} if after.reason else {}
        match after.state:
            case "finishing":
                found.append(("rollout finishing", {}))
            case "done":
                found.append(("rollout done", {}))
            case "undoing":
                found.append(("rollout stopped", reason))
            case "undone":
                found.append(("rollout undone", reason))
            case "rising":
                pass
    elif after.cells != before.cells:
        found.append(("rollout cell", {"cells": str(after.cells)}))
    elif after.step != before.step:
        done = f"{before.steps_percent[before.step]:g} %"
        found.append(("rollout step", {"over": done, "next": f"{_wanted(after):g} %"}))
    elif after.share_percent != before.share_percent:
        found.append(("rollout share", {"share": f"{after.share_percent:g} %"}))
    if found and after.note is not None:
        found[0][1]["note"] = after.note
    return found


def _wanted(rollout: Rollout) -> float:
    return rollout.steps_percent[rollout.step]
