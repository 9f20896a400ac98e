"""``submit``: from a spec file to running jobs, once."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from exaslurm.core.plan import Plan
from exaslurm.core.sharing import Counts, at_start, share
from exaslurm.core.submission import Submission
from exaslurm.core.turns import cell_of, number_of
from exaslurm.errors import (
    DeploymentError,
    SlurmError,
    StateError,
)
from exaslurm.keys.secrets import ensure_secrets
from exaslurm.models.shape import shape_of_source
from exaslurm.plan.context import Findings, PlanContext
from exaslurm.plan.fit import check_fit
from exaslurm.plan.planner import make_plan
from exaslurm.render.scripts import render_all
from exaslurm.render.templates import search_path
from exaslurm.rundir import GenerationDir, RunDir, state_root
from exaslurm.site.load import load_site
from exaslurm.site.paths import resolve
from exaslurm.slurm.client import Slurm
from exaslurm.slurm.limits import take_limits
from exaslurm.spec.load import load_spec
from exaslurm.submit import local, records
from exaslurm.submit.cell import CellStarter
from exaslurm.submit.gateway import ensure_gateway
from exaslurm.submit.gateway_jobs import GatewayQueue
from exaslurm.submit.lock import deployment_lock
from exaslurm.submit.overlap import names_reservation, why_no_overlap
from exaslurm.submit.survey import GenerationSurvey, Surveyor
from exaslurm.submit.talk import Talk, quiet
from exaslurm.util.files import read_text, write_atomic
from exaslurm.util.user import user_and_home


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitResult:
    """What came of a submit.

    ``attached``: it ran already, nothing was submitted. ``generation`` is 0 where nothing was
    written (``dry_run``, ``test_only``); then ``files`` is what would have been, by name, and
    ``answers`` are Slurm's words on each script (``test_only``).
    """

    run_dir: RunDir
    generation: int
    plan: Plan
    submissions: tuple[Submission, ...]
    attached: bool
    files: Mapping[str, str] = field(default_factory=dict)
    answers: tuple[str, ...] = ()


def make_plan_for(
    spec_path: Path, *, text: str | None = None, site: str | None = None, environ: Mapping[str, str]
) -> Plan:
    """The sealed plan of a spec file (or of ``text``, which is then said to be from that file).

    Reads the models' files where they are on this machine: what of them cannot work as the spec
    asks is found now, and not on the nodes. Raises SpecError, SiteError or PlanError with every
    problem found.
    """
    spec = load_spec(spec_path, text)
    machine = load_site(site or spec.site, environ)
    user, home = user_and_home(environ)
    context = PlanContext(
        user=user,
        home=home,
        python=sys.executable,
        environ_defaults={k: v for k, v in environ.items() if k.startswith("SBATCH_")},
        variables={name: environ[name] for name in machine.variables if name in environ},
    )
    plan = make_plan(spec, machine, context)
    shapes = {model.name: shape_of_source(model.source) for model in plan.models}
    findings = Findings()
    check_fit(spec, plan.models, {k: shape for k, shape in shapes.items() if shape}, findings)
    findings.stop_if_any()
    return plan


def run_dir_for(plan: Plan, environ: Mapping[str, str], *, site: str | None = None) -> RunDir:
    """Where the deployment lives; it need not exist."""
    state = load_site(site or plan.site, environ).state_dir(environ)
    return RunDir.of(state_root(environ, state), plan.deployment)


def template_dirs_for(
    plan: Plan, environ: Mapping[str, str], *, site: str | None = None
) -> tuple[Path, ...]:
    """Directories whose batch script templates win over the package's: the user's and the
    host's, then the site's own."""
    own = load_site(site or plan.site, environ).templates
    if own is None:
        return search_path(environ)
    user, home = user_and_home(environ)
    return (*search_path(environ), Path(resolve(own, user=user, home=home)))


def write_generation(
    run_dir: RunDir,
    generation: GenerationDir,
    plan: Plan,
    spec_text: str,
    template_dirs: Sequence[Path],
) -> None:
    """Write everything that the jobs of a plan need. Under the deployment's lock. StateError."""
    ensure_secrets(run_dir)
    generation.make(tuple(cell.name for cell in plan.cells))
    write_atomic(generation.spec, spec_text)
    files = render_all(plan, generation.path, run_dir.path, template_dirs)
    for name in sorted(files, key=lambda name: name == "plan.json"):
        write_atomic(generation.path / name, files[name])  # plan.json last: then all is there


def submit(
    spec_path: Path,
    *,
    text: str | None = None,
    site: str | None = None,
    dry_run: bool = False,
    test_only: bool = False,
    environ: Mapping[str, str] | None = None,
    talk: Talk = quiet,
    slurm: Slurm | None = None,
) -> SubmitResult:
    """Bring up a deployment, or attach to it if it is up.

    The deployment's name is the key. The same plan while it runs: nothing is submitted, except
    cells that an interrupted submit left out. Another plan while anything runs: DeploymentError.
    ``dry_run`` writes and asks nothing; ``test_only`` asks Slurm whether it would take the jobs.

    Raises UserError (spec, site, plan, state directory), SubmitRejected, SubmitAmbiguous,
    QueryFailed, CommandNotFound.
    """
    environ = dict(os.environ if environ is None else environ)
    plan = make_plan_for(spec_path, text=text, site=site, environ=environ)
    run_dir = run_dir_for(plan, environ, site=site)
    dirs = template_dirs_for(plan, environ, site=site)
    job = _Submit(
        plan=plan,
        run_dir=run_dir,
        template_dirs=dirs,
        environ=environ,
        talk=talk,
        slurm=slurm or Slurm(environ),
    )
    if dry_run or test_only:
        return job.preview(test_only=test_only)
    run_dir.make()
    with deployment_lock(run_dir):
        return job.submit(read_text(spec_path) if text is None else text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Submit:
    """One run of ``submit``, with everything it needs."""

    plan: Plan
    run_dir: RunDir
    template_dirs: tuple[Path, ...]
    environ: Mapping[str, str]
    talk: Talk
    slurm: Slurm

    def preview(self, *, test_only: bool) -> SubmitResult:
        """Render for the next generation, and maybe ask Slurm; leave nothing behind."""
        numbers = self.run_dir.generations()
        target = self.run_dir.generation(numbers[-1] + 1 if numbers else 1)
        files = render_all(self.plan, target.path, self.run_dir.path, self.template_dirs)
        answers = []
        if test_only:
            if self.plan.layout == "local":
                self.talk("site 'local' has no Slurm to ask")
            self._announce()
            for name in sorted(name for name in files if name.startswith("scripts/")):
                with tempfile.NamedTemporaryFile("w", prefix="exaslurm-", suffix=".sbatch") as file:
                    file.write(files[name])
                    file.flush()
                    answer = self.slurm.test_only(Path(file.name), label=Path(name).name)
                answers.append(f"{Path(name).stem}: {answer}")
        return SubmitResult(
            run_dir=self.run_dir,
            generation=0,
            plan=self.plan,
            submissions=(),
            attached=False,
            files=files,
            answers=tuple(answers),
        )

    def submit(self, spec_text: str) -> SubmitResult:
        """Under the deployment's lock: find out what is, then do what is missing."""
        surveyor = Surveyor(self.run_dir, lambda: self.slurm, self.talk)
        surveys = surveyor.survey()
        running = [each for each in surveys if each.cells("alive", "unknown")]
        if running:
            return self._join(running)
        if self.plan.layout == "local":
            local.require_engine(self.plan)
        self._close_ended(surveys)
        last = surveys[-1] if surveys else None
        if last and last.plan == self.plan and set(last.fates.values()) <= {"never"}:
            generation = last.generation
        else:
            number = last.generation.number + 1 if last else 1
            generation = self.run_dir.generation(number)
        notes = self._announce()
        write_generation(self.run_dir, generation, self.plan, spec_text, self.template_dirs)
        write_atomic(generation.notes, "".join(f"{note}\n" for note in notes))
        scale = at_start(self.plan)
        records.write_scale(self.run_dir, scale)
        wanted = share(self.plan, scale, frozenset())
        cells = [name for name in self._cells() if name in wanted]
        return self._start(generation, {}, cells, notes)

    def _cells(self) -> list[str]:
        return [cell.name for cell in self.plan.cells]

    def _join(self, running: list[GenerationSurvey]) -> SubmitResult:
        """Attach to what runs, and submit cells that were never submitted."""
        name = self.plan.deployment
        if not records.is_wanted(self.run_dir):
            raise DeploymentError(
                f"deployment {name!r} was told to stop and has not ended yet",
                remedy=f"'exaslurm stop {name}' waits for its end; then submit again",
            )
        desired = self.run_dir.read_desired()
        rollout = self.run_dir.read_rollout()
        if desired is not None and rollout is not None and rollout.concerns(desired.generation):
            raise DeploymentError(
                f"deployment {name!r} is going over from generation {rollout.stable} to "
                f"{rollout.candidate}",
                remedy=f"'exaslurm status {name}' shows how far it is; "
                f"'exaslurm rollback {name}' takes it back",
            )
        for each in running:
            if each.plan is None or each.plan.hash != self.plan.hash:
                raise DeploymentError(
                    f"deployment {name!r} runs with another spec (generation "
                    f"{each.generation.number})",
                    remedy=f"'exaslurm rollout SPEC' changes it without a gap; 'exaslurm stop "
                    f"{name}' ends it; another 'deployment:' name runs beside it",
                )
        newest = running[-1]
        for cell in newest.cells("unknown"):
            host = newest.submissions[cell].host
            self.talk(f"cell {cell} was started on {host}; whether it runs is not seen from here")
        current = _newest_turns(newest)
        wanted = self._shares(newest)
        ended = [c for c in newest.cells("ended") if c in current and cell_of(c) in wanted]
        if ended:
            self.talk(
                f"these cells have ended and are not submitted again: {', '.join(ended)}"
                f" ('exaslurm stop {name}', then submit, starts all of them)"
            )
        # A rollout begins with later turns.
        later = {cell_of(turn) for turn in newest.submissions if turn != cell_of(turn)}
        missing = [cell for cell in newest.cells("never") if cell in wanted and cell not in later]
        if missing:
            self.talk(f"an earlier submit left out {', '.join(missing)}")
            return self._start(newest.generation, newest.submissions, missing)
        records.write_desired(self.run_dir, run=True, generation=newest.generation.number)
        self._start_gateway(newest.generation.number)
        return SubmitResult(
            run_dir=self.run_dir,
            generation=newest.generation.number,
            plan=self.plan,
            submissions=tuple(newest.submissions[cell] for cell in current),
            attached=True,
        )

    def _shares(self, survey: GenerationSurvey) -> dict[str, Counts | None]:
        """The cells that are wanted now, and what they run."""
        living = {cell_of(turn) for turn in survey.cells("alive", "unknown")}
        return share(self.plan, self.run_dir.read_scale(), living)

    def _close_ended(self, surveys: list[GenerationSurvey]) -> None:
        """Note that jobs have ended, so that no later submit asks Slurm for them again."""
        for each in surveys:
            for cell in each.cells("ended"):
                item = each.submissions[cell]
                if item.state != "stopped":
                    done = replace(item, state="stopped", message="had ended")
                    records.write_submission(each.generation, done)
                    # What the ended cell published would send routers to nodes of other people.
                    with contextlib.suppress(OSError):
                        self.run_dir.record(cell).unlink()

    def _announce(self) -> list[str]:
        """Say what the user should know beforehand, as far as Slurm tells it."""
        if self.plan.layout == "local":
            return []
        try:
            limits = take_limits(
                self.slurm,
                user_and_home(self.environ)[0],
                reservations=names_reservation(self.plan.cells),
            )
        except SlurmError:
            return []  # sbatch will tell what is wrong
        found = why_no_overlap(self.plan, limits)
        if found is None:
            return []
        self.talk(f"note: {found}")
        return [found]

    def _start(
        self,
        generation: GenerationDir,
        known: Mapping[str, Submission],
        cells: list[str],
        notes: Sequence[str] = (),
    ) -> SubmitResult:
        """Submit these cells. A refused one ends it: the next would be refused too."""
        done = dict(known)
        starter = CellStarter(
            plan=self.plan,
            run_dir=self.run_dir,
            environ=self.environ,
            talk=self.talk,
            slurm=self.slurm,
        )
        records.end_rollout(self.run_dir, "the deployment was submitted anew")
        records.write_desired(self.run_dir, run=True, generation=generation.number)
        try:
            shares = share(self.plan, self.run_dir.read_scale(), frozenset(known))
            for cell in cells:
                records.write_targets(generation, cell, shares.get(cell))
                done[cell] = starter.start(generation, cell)
        except SlurmError:
            if any(item.state == "submitted" for item in done.values()):
                # What is submitted will serve, and needs to be looked after; so do the others.
                self._start_gateway(generation.number)
                if self.plan.gateway.start_with_submit:
                    self.talk("the supervisor tries the others again, less and less often")
            raise
        finally:
            self._add_history(generation, list(done.values()), notes)
        self._start_gateway(generation.number)
        return SubmitResult(
            run_dir=self.run_dir,
            generation=generation.number,
            plan=self.plan,
            submissions=tuple(done[cell.name] for cell in self.plan.cells if cell.name in done),
            attached=False,
        )

    def _add_history(
        self, generation: GenerationDir, done: list[Submission], notes: Sequence[str]
    ) -> None:
        try:
            records.add_history(
                self.run_dir,
                "submit",
                generation=generation.number,
                plan_hash=self.plan.hash,
                submissions=done,
                extra={"note": "; ".join(notes)} if notes else None,
            )
        except StateError as error:  # the jobs are what counts, or an error that comes up now
            self.talk(str(error))

    def _start_gateway(self, generation: int) -> None:
        if not self.plan.gateway.start_with_submit:
            return
        try:
            if self.plan.gateway.job is None:
                ensure_gateway(self.run_dir, generation, environ=self.environ, talk=self.talk)
            else:
                queue = GatewayQueue(
                    plan=self.plan, run_dir=self.run_dir, slurm=self.slurm, talk=self.talk
                )
                queue.top_up(self.run_dir.generation(generation))
        except (StateError, SlurmError) as error:
            # The jobs are what counts, and they are submitted.
            self.talk(f"the gateway did not start: {error}")


def _newest_turns(survey: GenerationSurvey) -> list[str]:
    """Of each cell the turns that may live; the newest one where none does."""
    found: list[str] = []
    for cell in dict.fromkeys(map(cell_of, survey.submissions)):
        turns = sorted((t for t in survey.submissions if cell_of(t) == cell), key=number_of)
        found += [t for t in turns if survey.fates[t] in ("alive", "unknown")] or turns[-1:]
    return found
