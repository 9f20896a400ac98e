"""Doing what was decided, one effect at a time, each under the deployment's lock.

Before an effect is done it is looked up whether it still applies: another supervisor, ``submit`` or
``stop`` may have been faster. All that is remembered is in the run directory, so that a supervisor
that dies between any two lines here leaves what the next one can go on with. One that was paused
and has lost the lock meanwhile is refused before the next effect (``require_lease``).
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from exaslurm.core.plan import CellPlan, Plan
from exaslurm.core.submission import Submission
from exaslurm.core.turns import cell_of, number_of
from exaslurm.errors import RegistryError, SlurmError, StateError
from exaslurm.keys.secrets import read_secret
from exaslurm.registry.client import post_drain, post_stop, post_targets
from exaslurm.registry.read import read_record
from exaslurm.registry.write import remove_record
from exaslurm.render.scripts import render_script
from exaslurm.rundir import GenerationDir, RunDir
from exaslurm.slurm.client import Slurm
from exaslurm.slurm.reservations import Maintenance
from exaslurm.slurm.types import JobId
from exaslurm.submit import records
from exaslurm.submit.cell import CellStarter
from exaslurm.submit.lock import deployment_lock, require_lease
from exaslurm.submit.survey import SETTLED_S, job_key
from exaslurm.supervisor.model import (
    Cancel,
    Close,
    Drain,
    Effect,
    Relimit,
    Remember,
    Resolve,
    Retarget,
    Stop,
    Submit,
)
from exaslurm.supervisor.observe import Look, read_turns
from exaslurm.supervisor.wall_time import before_maintenance
from exaslurm.supervisor.wish import read_wish
from exaslurm.util.files import make_private_dir, write_atomic

log = logging.getLogger(__name__)

_HTTP_TIMEOUT_S = 5.0


class Controllers(Protocol):
    """What is asked of the controllers of cells."""

    def drain(self, url: str, key: str) -> None: ...

    def stop(self, url: str, key: str, grace_s: float) -> None: ...

    def retarget(self, url: str, key: str, replicas: Mapping[str, int] | None) -> None: ...


class HttpControllers:
    """The real ones. RegistryError if one does not answer."""

    def drain(self, url: str, key: str) -> None:
        post_drain(url, key, timeout_s=_HTTP_TIMEOUT_S)

    def stop(self, url: str, key: str, grace_s: float) -> None:
        post_stop(url, key, grace_s=grace_s, timeout_s=_HTTP_TIMEOUT_S)

    def retarget(self, url: str, key: str, replicas: Mapping[str, int] | None) -> None:
        post_targets(url, key, replicas, timeout_s=_HTTP_TIMEOUT_S)


@dataclass(slots=True, kw_only=True)
class Actor:
    """Carries effects out. ``template_dirs`` are as of ``submit.template_dirs_for``."""

    run_dir: RunDir
    slurm: Slurm
    environ: Mapping[str, str]
    template_dirs: Sequence[Path] = ()
    controllers: Controllers = field(default_factory=HttpControllers)
    clock: Callable[[], float] = time.time
    _told: set[str] = field(default_factory=set)
    _first_seen: dict[str, float] = field(default_factory=dict)

    def do(self, effect: Effect, look: Look) -> None:
        """Do one effect, if what was wanted when it was decided still is.

        What Slurm or a controller refuses is logged, written down where it matters, and tried
        again when it is decided again. Raises StateError, DeploymentError (the lock is taken).
        """
        with deployment_lock(self.run_dir):
            if read_wish(self.run_dir) != look.wish:
                return
            turns = read_turns(self.run_dir, look.plans)
            try:
                self._do(effect, look, turns)
            except (SlurmError, RegistryError) as error:
                log.warning("%s: %s", effect.key, error)

    def _do(self, effect: Effect, look: Look, turns: dict[str, Submission]) -> None:
        if isinstance(effect, Submit):
            self._submit(effect, look, turns)
            return
        item = turns.get(effect.turn)
        if item is None:
            return
        generation = self.run_dir.generation(item.generation)
        if isinstance(effect, Resolve):
            self._resolve(effect, generation, item)
        elif item.state == "submitted":
            if isinstance(effect, Remember):
                self._remember(effect, generation, item)
            elif isinstance(effect, Relimit):
                self._relimit(effect, generation, item)
            elif isinstance(effect, Retarget):
                controller = self._controller(item)
                require_lease()
                self.controllers.retarget(*controller, effect.replicas)
            elif isinstance(effect, Drain):
                self._drain(effect, generation, item)
            elif isinstance(effect, Stop):
                self._stop(effect, look.plans[item.generation], generation, item)
            elif isinstance(effect, Cancel):
                self._cancel(effect, generation, item)
            elif isinstance(effect, Close):
                self._close(effect, generation, item)

    # --- submitting --------------------------------------------------------------------------

    def _submit(self, effect: Submit, look: Look, turns: dict[str, Submission]) -> None:
        generation, plan = self.run_dir.generation(effect.generation), look.plans[effect.generation]
        name = cell_of(effect.turn)
        mine = sorted(
            (item for item in turns.values() if cell_of(item.cell) == name),
            key=lambda item: number_of(item.cell),
        )
        if (mine[-1].cell if mine else None) != effect.newest:
            return
        if any(item.state in ("intent", "ambiguous") for item in mine):
            return
        again = turns.get(effect.turn)
        if again is not None and (again.state, again.refusals) != ("refused", effect.refusals):
            return
        cell, maintenance = self._write_script(effect.turn, generation, plan)
        shares = next((c.targets for c in look.world.cells if c.name == name), {})
        records.write_targets(generation, effect.turn, shares.get(effect.generation))
        starter = CellStarter(
            plan=plan,
            run_dir=self.run_dir,
            environ=self.environ,
            talk=lambda line: log.info("%s", line),
            slurm=self.slurm,
            clock=self.clock,
        )
        log.info("submitting %s: %s", effect.turn, effect.reason)
        try:
            done = starter.start(generation, cell.name, refusals=effect.refusals)
        except SlurmError:
            written = read_turns(self.run_dir, [effect.generation])
            self._add_history("submit refused", effect, generation, written)
            raise
        if maintenance is not None:
            done = replace(done, limited_by=maintenance.name)
            records.write_submission(generation, done)
        self._add_history("submit", effect, generation, {effect.turn: done})

    def _write_script(
        self, turn: str, generation: GenerationDir, plan: Plan
    ) -> tuple[CellPlan, Maintenance | None]:
        cell, maintenance = before_maintenance(plan.cell(turn), self.slurm, self.clock())
        if maintenance is not None:
            log.info("%s ends before the maintenance %s begins", turn, maintenance.name)
        make_private_dir(generation.cell(turn))
        make_private_dir(generation.logs(turn))
        text = render_script(plan, cell, generation.path, self.run_dir.path, self.template_dirs)
        write_atomic(generation.script(turn), text)
        return cell, maintenance

    def _resolve(self, effect: Effect, generation: GenerationDir, item: Submission) -> None:
        if item.state not in ("intent", "ambiguous"):
            return
        jobs = self.slurm.find_by_name(item.job_name, since_s=item.created_s - 60)
        if len(jobs) > 1:
            ids = ", ".join(job.id for job in jobs)
            log.error("several jobs are named %s: %s; cancel all but one", item.job_name, ids)
            return
        if jobs:
            log.info("%s: job %s was submitted after all", item.cell, jobs[0].id)
            found = replace(
                item,
                state="submitted",
                job_id=jobs[0].id,
                cluster=jobs[0].cluster,
                submitted_s=item.created_s,
                refusals=0,
            )
        elif self.clock() - self._since_s(item) > SETTLED_S:
            found = replace(
                item, state="refused", message="no job of this name exists: it was never submitted"
            )
        else:
            return  # it may still turn up
        records.write_submission(generation, found)
        self._add_history("submit found", effect, generation, {item.cell: found})

    def _since_s(self, item: Submission) -> float:
        """Since when a submission is waited for, by this host's clock, which may be behind that of
        the host that made it."""
        return min(item.created_s, self._first_seen.setdefault(item.token, self.clock()))

    # --- ending ------------------------------------------------------------------------------

    def _remember(self, effect: Remember, generation: GenerationDir, item: Submission) -> None:
        if item.served_s is None:
            done = replace(
                item, started_s=effect.started_s, served_s=effect.served_s, gap_s=effect.gap_s
            )
            records.write_submission(generation, done)
            self._add_history("serves", effect, generation, {item.cell: done})

    def _relimit(self, effect: Relimit, generation: GenerationDir, item: Submission) -> None:
        """Every component of the job gets the limit, if it still waits."""
        key = job_key(item)
        if not self.slurm.jobs([key])[key].is_pending:
            return
        require_lease()
        for component, limit_s in self.slurm.time_limits([key]).get(key, {}).items():
            if limit_s != 60.0 * effect.limit.minutes:
                self.slurm.set_time_limit(key, component, effect.limit.minutes)
        maintenance = effect.limit.maintenance
        done = replace(item, limited_by=maintenance.name if maintenance is not None else None)
        records.write_submission(generation, done)
        log.info("%s may run for %d minutes: %s", item.cell, effect.limit.minutes, effect.reason)
        self._add_history("time limit", effect, generation, {item.cell: done})

    def _drain(self, effect: Drain, generation: GenerationDir, item: Submission) -> None:
        if item.drain_s is None:
            item = replace(item, drain_s=self.clock())
            records.write_submission(generation, item)
        self._tell("drain", effect, generation, item)
        controller = self._controller(item)
        # What is written is known to whoever takes over: only then may it be done late.
        require_lease()
        self.controllers.drain(*controller)

    def _stop(self, effect: Stop, plan: Plan, generation: GenerationDir, item: Submission) -> None:
        self._tell("stop", effect, generation, item)
        controller = self._controller(item)
        require_lease()
        self.controllers.stop(*controller, plan.timeouts.drain_s)

    def _cancel(self, effect: Cancel, generation: GenerationDir, item: Submission) -> None:
        self._tell("cancel", effect, generation, item)
        require_lease()
        self.slurm.cancel(JobId(str(item.job_id), item.cluster))

    def _close(self, effect: Close, generation: GenerationDir, item: Submission) -> None:
        require_lease()
        # What the ended cell published would send routers to nodes of other people.
        remove_record(self.run_dir, item.cell, job_id=item.job_id)
        done = replace(
            item, state="stopped", message="had ended", end=effect.end, ended_s=effect.ended_s
        )
        records.write_submission(generation, done)
        self._add_history("ended", effect, generation, {item.cell: done})

    def _controller(self, item: Submission) -> tuple[str, str]:
        """Address and key of the controller of a turn; RegistryError if it has published none."""
        try:
            record = read_record(self.run_dir.record(item.cell))
            if record.job_id == item.job_id:
                return record.state_url, read_secret(self.run_dir.internal_key)
        except StateError as error:
            raise RegistryError(f"no controller of {item.cell} is known") from error
        raise RegistryError(f"the record of {item.cell} is not that of job {item.job_id}")

    # --- telling -----------------------------------------------------------------------------

    def _tell(self, verb: str, effect: Effect, generation: GenerationDir, item: Submission) -> None:
        """Say once what is done, maybe again and again."""
        if effect.key not in self._told:
            self._told.add(effect.key)
            log.info("%s: %s", effect.key, effect.reason)
            self._add_history(verb, effect, generation, {item.cell: item})

    def _add_history(
        self,
        verb: str,
        effect: Effect,
        generation: GenerationDir,
        turns: Mapping[str, Submission],
    ) -> None:
        item = turns.get(effect.turn)
        extra = {"by": f"supervisor {os.getpid()} on {socket.gethostname()}", "cell": effect.turn}
        if effect.reason:
            extra["reason"] = effect.reason
        if item is not None and item.message and item.state == "refused":
            extra["message"] = item.message
        if isinstance(effect, Close) and effect.end:
            extra["end"] = effect.end
        if isinstance(effect, Relimit):
            extra["minutes"] = str(effect.limit.minutes)
        if isinstance(effect, Remember) and effect.gap_s is not None:
            extra["gap_s"] = f"{effect.gap_s:.0f}"
        records.add_history(
            self.run_dir,
            verb,
            generation=generation.number,
            plan_hash=item.plan_hash if item is not None else "",
            submissions=[item] if item is not None else [],
            extra=extra,
        )
