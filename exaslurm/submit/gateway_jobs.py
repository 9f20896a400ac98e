"""The jobs of a gateway that runs in one: as many as there shall be, and their end.

All have one name, and Slurm runs one of them at a time. They are told apart by nothing else, so
what counts is their number: whoever holds the deployment's lock submits what is missing, and takes
waiting ones away that are too many. A submission of which it is not known whether it made a job is
waited for until it can no longer turn up; then the jobs are counted.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from exaslurm.core import codec
from exaslurm.core.plan import Plan
from exaslurm.core.submission import GatewayJobs
from exaslurm.errors import QueryFailed, SlurmError, StateError, SubmitAmbiguous, SubmitRejected
from exaslurm.render.scripts import GATEWAY, gateway_job_name
from exaslurm.rundir import GenerationDir, RunDir
from exaslurm.slurm.client import Slurm, wait_until
from exaslurm.slurm.types import JobInfo
from exaslurm.submit.cell import comment_of
from exaslurm.submit.lock import require_lease
from exaslurm.submit.survey import SETTLED_S
from exaslurm.submit.talk import Talk
from exaslurm.util.files import read_text, write_atomic

_REFUSED_S, _MOST_REFUSED_S = 30.0, 900.0
# What a job needs to be gone after it was cancelled: Slurm's KillWait is 30 s by default.
_CANCELLED_S = 45.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayQueue:
    """Keeps the number of a deployment's gateway jobs. Used under the deployment's lock."""

    plan: Plan
    run_dir: RunDir
    slurm: Slurm
    talk: Talk
    clock: Callable[[], float] = time.time

    def is_as_wanted(self, jobs: Iterable[JobInfo]) -> bool:
        """Whether these jobs of the deployment are as they shall be and as they were written down,
        or the time for another try has not come."""
        book = read_book(self.run_dir)
        if book is None or book.asked_s is not None:
            return False
        ids = {job.id for job in jobs if job.name == book.job_name and _counts(job)}
        if len(ids) < book.wanted and self.clock() < _due_s(book):
            return True
        return ids == set(book.ids) and len(ids) == book.wanted == self._wanted()

    def top_up(self, generation: GenerationDir) -> None:
        """Submit what is missing, cancel what waits and is too much.

        Raises SubmitRejected, SubmitAmbiguous, QueryFailed, CommandNotFound (the next try comes
        with the next call), StateError.
        """
        name, wanted = gateway_job_name(self.plan.deployment, self.run_dir.path), self._wanted()
        live = _live(self.slurm, name)
        last = read_book(self.run_dir) or GatewayJobs(job_name=name, wanted=wanted)
        book = replace(last, job_name=name, wanted=wanted, ids=tuple(job.id for job in live))
        if book.asked_s is not None:
            if len(live) < wanted and self.clock() - book.asked_s < SETTLED_S:
                return  # it may still turn up
            book = replace(book, asked_s=None)
        book = self._without_surplus(book, live)
        if len(book.ids) < wanted and self.clock() >= _due_s(book):
            book = self._submit_missing(book, generation)
        if book != last:
            self._write(book)

    def _wanted(self) -> int:
        assert self.plan.gateway.job is not None
        return 1 + self.plan.gateway.job.spares

    def _submit_missing(self, book: GatewayJobs, generation: GenerationDir) -> GatewayJobs:
        script, comment = generation.script(GATEWAY), f"--comment={comment_of(self.plan)}"
        while len(book.ids) < book.wanted:
            self._write(replace(book, asked_s=self.clock()))
            require_lease()
            try:
                job = self.slurm.submit(
                    script, job_name=book.job_name, extra=(comment,), one_of_many=True
                )
            except SubmitAmbiguous:
                raise
            except SlurmError as error:
                told = str(error) if isinstance(error, SubmitRejected) else ""
                refusals = book.refusals + 1
                self._write(replace(book, refusals=refusals, refused_s=self.clock(), message=told))
                raise
            self.talk(f"gateway: submitted as job {job.id}")
            book = replace(book, ids=(*book.ids, job.id), refusals=0, message="")
        return book

    def _without_surplus(self, book: GatewayJobs, live: list[JobInfo]) -> GatewayJobs:
        """What came of a submission late, or is left of a plan that wanted more."""
        waiting = sorted((job.id for job in live if job.is_pending), key=int)
        over = waiting[len(waiting) - max(0, len(live) - book.wanted) :] if waiting else []
        for ident in over:
            require_lease()
            self.slurm.cancel(ident)
            self.talk(f"gateway: job {ident} is one too many: cancelled")
        return replace(book, ids=tuple(ident for ident in book.ids if ident not in over))

    def _write(self, book: GatewayJobs) -> None:
        write_atomic(self.run_dir.gateway_jobs, codec.dumps(book, indent=1))


def read_book(run_dir: RunDir) -> GatewayJobs | None:
    """What is written down of a deployment's gateway jobs; None if there never were any, or if it
    cannot be understood: they are counted anyway."""
    path = run_dir.gateway_jobs
    try:
        return codec.loads(GatewayJobs, read_text(path), where=str(path))
    except StateError:
        return None


def cancel_waiting(run_dir: RunDir, slurm: Slurm, talk: Talk) -> None:
    """Cancel the jobs that would take over from the one that ends. QueryFailed if Slurm does not
    answer."""
    book = read_book(run_dir)
    for job in _live(slurm, book.job_name) if book is not None else []:
        if job.is_pending:
            slurm.cancel(job.id)
            talk(f"gateway: job {job.id} waited for its turn: cancelled")


def stop_gateway_jobs(run_dir: RunDir, slurm: Slurm, *, timeout_s: float, talk: Talk) -> list[str]:
    """Wait until the gateway's job has ended, as ``desired.json`` asks of it, then cancel it.
    Returns what could not be ended, or is not known to have."""
    book = read_book(run_dir)
    if book is None:
        return []
    try:
        ended = wait_until(lambda: not _live(slurm, book.job_name), timeout_s=timeout_s)
        if not ended:
            for job in _live(slurm, book.job_name):
                talk(f"gateway: cancelling job {job.id}")
                slurm.cancel(job.id)
            wait_until(lambda: not _live(slurm, book.job_name), timeout_s=_CANCELLED_S)
        left = [f"gateway job {job.id}" for job in _live(slurm, book.job_name)]
    except QueryFailed as error:
        talk(f"gateway: {error}")
        return [f"gateway jobs named {book.job_name} (Slurm gives no answer)"]
    if not left:
        with contextlib.suppress(OSError):
            run_dir.gateway_jobs.unlink()
    return left


def _live(slurm: Slurm, name: str) -> list[JobInfo]:
    """Those that wait or run."""
    return [job for job in slurm.named(name) if job.name == name and _counts(job)]


def _counts(job: JobInfo) -> bool:
    """Whether a job is one of those that shall be: not one that ends just now."""
    return job.state != "COMPLETING"


def _due_s(book: GatewayJobs) -> float:
    """When the next try may be made after Slurm has refused one."""
    if not book.refusals:
        return 0.0
    return book.refused_s + min(_REFUSED_S * 2.0 ** min(book.refusals - 1, 20), _MOST_REFUSED_S)
