"""What became of a deployment's earlier submissions."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from exaslurm.core.plan import Plan
from exaslurm.core.submission import Submission
from exaslurm.errors import StateError, SubmitAmbiguous
from exaslurm.rundir import GenerationDir, RunDir
from exaslurm.slurm.client import Slurm
from exaslurm.slurm.types import JobId
from exaslurm.submit import local, records
from exaslurm.submit.talk import Talk
from exaslurm.util.process import is_alive

# never: no job was made, and none will be. unknown: a process on another host.
Fate = Literal["never", "alive", "ended", "unknown"]

# A job whose submission went unanswered is in Slurm's queue within this time, or never will be:
# well above MessageTimeout (10 s by default; sites with busy controllers have 60 to 100 s).
SETTLED_S = 120.0
_PAUSE_S = 5.0


def job_key(item: Submission) -> str:
    """A submitted job as ``Slurm.jobs`` names it."""
    return str(JobId(str(item.job_id), item.cluster))


@dataclass(slots=True)
class GenerationSurvey:
    """One generation: its plan (None if it was never written), and each cell's submission."""

    generation: GenerationDir
    plan: Plan | None
    submissions: dict[str, Submission]
    fates: dict[str, Fate] = field(default_factory=dict)

    def cells(self, *fates: Fate) -> list[str]:
        """Cells with one of these fates, in order."""
        return [cell for cell, fate in self.fates.items() if fate in fates]


@dataclass(frozen=True, slots=True)
class Surveyor:
    """Finds out, asking Slurm once for all jobs, and only if there are any.

    Submissions whose answer is missing are looked up by name, and the record is completed; one
    without any record is known by what its job has left in the run directory. ``lenient``: files
    that cannot be read are told and gone without, so that a stop ends all that can be found.
    """

    run_dir: RunDir
    slurm: Callable[[], Slurm]
    talk: Talk
    lenient: bool = False
    hostname: str = field(default_factory=socket.gethostname)

    def survey(self) -> list[GenerationSurvey]:
        """The last generation and those that may not have ended, oldest first.

        Raises QueryFailed if Slurm does not answer, SubmitAmbiguous if the fate of a submission
        cannot be found out yet.
        """
        numbers = self.run_dir.generations()
        surveys = [self._read(number) for number in numbers if self._matters(number, numbers[-1])]
        for each in surveys:
            for cell, submission in each.submissions.items():
                each.submissions[cell] = self._resolved(each.generation, submission)
        ids = [
            job_key(item)
            for each in surveys
            for item in each.submissions.values()
            if item.state == "submitted" and item.job_id and item.job_id != "local"
        ]
        jobs = self.slurm().jobs(ids) if ids else {}
        finished = {ident for ident, job in jobs.items() if job.is_finished}
        for each in surveys:
            each.fates = {
                cell: self._fate(item, finished) for cell, item in each.submissions.items()
            }
            names = [cell.name for cell in each.plan.cells] if each.plan else []
            each.fates = {**dict.fromkeys(names, "never"), **each.fates}
        return surveys

    def _matters(self, number: int, last: int) -> bool:
        """Older generations that are known to have ended need not be looked at again."""
        generation = self.run_dir.generation(number)
        unread: list[StateError] = []
        known = records.read_submissions(generation, damaged=unread.append)
        states = [item.state for item in known.values()]
        return number == last or bool(unread) or any(state != "stopped" for state in states)

    def _read(self, number: int) -> GenerationSurvey:
        generation = self.run_dir.generation(number)
        told = self._tell if self.lenient else None
        submissions = records.read_submissions(generation, damaged=told)
        for cell in generation.cells():
            if cell not in submissions:
                trace = self._trace(generation, cell)
                if trace is not None:
                    submissions[cell] = trace
        return GenerationSurvey(generation, self._read_plan(generation), submissions)

    def _read_plan(self, generation: GenerationDir) -> Plan | None:
        try:
            return records.read_plan(generation)
        except StateError as error:
            if not self.lenient:
                raise
            self._tell(error)
            return None

    def _tell(self, error: StateError) -> None:
        self.talk(f"going on without it: {error}")

    def _trace(self, generation: GenerationDir, cell: str) -> Submission | None:
        """The submission that a cell without a record must have had: what its job wrote first."""
        process = local.find_init(generation, cell)
        marker = records.read_marker(generation, cell)
        if process is None and (marker is None or marker.job_id == "local"):
            return None
        pid, ticks = process or (None, None)
        self.talk(f"cell {cell} has no record of its submission, but was started")
        return Submission(
            deployment=self.run_dir.deployment,
            cell=cell,
            generation=generation.number,
            plan_hash=marker.plan_hash if marker else "",
            token="",
            job_name=marker.job_name if marker else "",
            state="submitted",
            created_s=marker.started_s if marker else time.time(),
            job_id=marker.job_id if marker and process is None else "local",
            host=self.hostname if process else None,
            pid=pid,
            start_ticks=ticks,
        )

    def _fate(self, item: Submission, finished: set[str]) -> Fate:
        if item.state == "stopped":
            return "ended"
        if item.state != "submitted" or item.job_id is None:
            return "never"
        if item.job_id == "local":
            if item.host != self.hostname:
                return "unknown"
            alive = is_alive(item.pid or 0, item.start_ticks or 0)
            return "alive" if alive else "ended"
        return "ended" if job_key(item) in finished else "alive"

    def _resolved(self, generation: GenerationDir, item: Submission) -> Submission:
        """The submission with its missing answer found out: submitted after all, or refused."""
        if item.state not in ("intent", "ambiguous"):
            return item
        found = next(self._look_up(generation, item), None)
        done = found or replace(
            item, state="refused", message="no job of this name exists: it was never submitted"
        )
        try:
            records.write_submission(generation, done)
        except StateError:
            if not self.lenient:
                raise
        return done

    def _look_up(self, generation: GenerationDir, item: Submission) -> Iterator[Submission]:
        process = local.find_init(generation, item.cell)
        if process is not None:
            pid, ticks = process
            yield replace(
                item,
                state="submitted",
                job_id="local",
                pid=pid,
                start_ticks=ticks,
                host=self.hostname,
            )
            return
        plan = self._read_plan(generation)
        if plan is not None and plan.layout == "local":
            return
        waited = False
        while True:
            jobs = self.slurm().find_by_name(item.job_name, since_s=item.created_s - 60)
            if len(jobs) > 1:
                ids = ", ".join(job.id for job in jobs)
                raise SubmitAmbiguous(
                    f"several jobs are named {item.job_name}: {ids}",
                    remedy="cancel all but one of them with scancel, then submit again",
                )
            if jobs:
                self.talk(f"cell {item.cell}: job {jobs[0].id} was submitted after all")
                found = jobs[0]
                yield replace(item, state="submitted", job_id=found.id, cluster=found.cluster)
                return
            left_s = item.created_s + SETTLED_S - time.time()
            if left_s <= 0:
                return
            if not waited:
                self.talk(
                    f"cell {item.cell}: an earlier submission has no answer yet; looking for job "
                    f"{item.job_name} for {left_s:.0f} s more"
                )
            waited = True
            time.sleep(min(_PAUSE_S, left_s))
