"""The Slurm client: submit, look up, query, cancel."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from exaslurm.errors import (
    CommandNotFound,
    QueryFailed,
    SlurmError,
    SubmitAmbiguous,
    SubmitRejected,
)
from exaslurm.slurm import command, parse, refusals
from exaslurm.slurm import environ as environments
from exaslurm.slurm.command import Answer
from exaslurm.slurm.types import JobId, JobInfo
from exaslurm.util.hostlist import expand


class Slurm:
    """Slurm as one user sees it from one host.

    ``environ`` (default: this process's) is scrubbed of what a job we may be in left there.
    ``timeout_s`` limits each command, ``submit_timeout_s`` sbatch, which may wait for a busy
    controller, and ``look_up_s`` the search for a job whose submission went unanswered. ``pause_s``
    is the time between two tries. ``calls`` counts the commands that were run, by name.
    """

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        *,
        timeout_s: float = 30.0,
        submit_timeout_s: float = 60.0,
        look_up_s: float = 30.0,
        pause_s: float = 2.0,
    ) -> None:
        self._environ = environments.outside(os.environ if environ is None else environ)
        self._timeout_s = timeout_s
        self._submit_timeout_s = submit_timeout_s
        self._look_up_s = look_up_s
        self._pause_s = pause_s
        self._has_accounting = True
        self.calls: dict[str, int] = {}

    # --- asking -----------------------------------------------------------------------------

    def query(self, argv: Sequence[str]) -> str:
        """The standard output of a command that changes nothing; asked twice if need be. Times in
        it are UTC.

        Raises CommandNotFound, or QueryFailed with Slurm's words.
        """
        answer = self._run(argv)
        if answer.returncode != 0 and answer.is_transient:
            time.sleep(self._pause_s)
            answer = self._run(argv)
        if answer.returncode != 0:
            raise _query_failed(answer)
        return answer.stdout

    def version(self) -> str:
        """Slurm's version on this host, such as ``22.05.8``."""
        words = self.query(["sbatch", "--version"]).split()
        return words[-1] if words else "unknown"

    def jobs(self, ids: Sequence[str]) -> dict[str, JobInfo]:
        """What is known of jobs, by id (of the leader, where there are components) as given:
        ``id`` or ``id;cluster``.

        One squeue for all of them (of a cluster); sacct for those that are no longer in the queue,
        where the site has accounting. A job that the controller does not know, and of whose end
        accounting knows nothing, is ``GONE``. Raises QueryFailed if the controller does not
        answer: then nothing is known, least of all that a job has ended.
        """
        asked = {text: JobId.parse(text) for text in ids}
        found: dict[JobId, JobInfo] = {}
        for cluster in dict.fromkeys(job.cluster for job in asked.values()):
            here = [job.id for job in asked.values() if job.cluster == cluster]
            where = [f"--clusters={cluster}"] if cluster else []
            found |= {JobId(ident, cluster): job for ident, job in self._jobs(here, where).items()}
        return {text: found[ident] for text, ident in asked.items()}

    def find_by_name(self, name: str, *, since_s: float | None = None) -> list[JobInfo]:
        """This user's jobs of that name, ended ones too, as far as Slurm remembers them.

        ``since_s`` (Unix seconds) lets accounting look that far back instead of only today.
        Raises QueryFailed if the controller does not answer.
        """
        who = [f"--user={os.getuid()}", f"--name={name}"]
        found = self._squeue(who)
        if not found:
            since = parse.time_text(since_s or time.time() - 600)
            found = self._sacct([*who, f"--starttime={since}"])
        return list(found.values())

    def time_limits(self, ids: Sequence[str]) -> dict[str, dict[str, float | None]]:
        """Time limits in seconds (None: no limit) of jobs' components, by job as given and by
        component, as Slurm calls them (``93+1``). Jobs that are not in the queue are left out.
        Raises QueryFailed."""
        found: dict[str, dict[str, float | None]] = {}
        asked = {text: JobId.parse(text) for text in ids}
        for cluster in dict.fromkeys(job.cluster for job in asked.values()):
            here = {job.id: text for text, job in asked.items() if job.cluster == cluster}
            where = [f"--clusters={cluster}"] if cluster else []
            argv = ["squeue", "--noheader", f"--format={parse.LIMIT_FORMAT}", *where]
            stdout = self.query([*argv, "--jobs=" + ",".join(here)])
            for ident, limit_s in parse.time_limits(stdout).items():
                leader = ident.partition("+")[0]
                if leader in here:
                    found.setdefault(here[leader], {})[ident] = limit_s
        return found

    def named(self, prefix: str) -> list[JobInfo]:
        """This user's jobs that wait or run and whose names begin so, by one squeue.

        Raises QueryFailed if the controller does not answer.
        """
        found = self._squeue([f"--user={os.getuid()}"])
        return [j for j in found.values() if j.name.startswith(prefix) and not j.is_finished]

    def expand(self, nodelist: str) -> list[str]:
        """Single host names; ValueError if the list is malformed."""
        return expand(nodelist)

    # --- acting -----------------------------------------------------------------------------

    def submit(
        self, script: Path, *, job_name: str, extra: Sequence[str] = (), one_of_many: bool = False
    ) -> JobId:
        """Submit a script under a name that no other job has.

        If it stays open whether Slurm took the job, the name is looked up, for ``look_up_s`` at
        most; nothing is ever submitted twice. ``one_of_many``: other jobs have the same name, so
        that would tell nothing, and SubmitAmbiguous comes at once.

        Raises SubmitRejected (there is no job), SubmitAmbiguous (there may be one),
        CommandNotFound.
        """
        argv = ["sbatch", "--parsable", f"--job-name={job_name}", *extra, str(script)]
        answer = self._run(argv, timeout_s=self._submit_timeout_s)
        ident = parse.job_id(answer.stdout) if answer.returncode == 0 else None
        if ident is not None:
            return ident
        if refusals.was_not_sent(answer):
            raise SubmitRejected(
                f"Slurm's controller cannot be reached: {answer.complaint}",
                remedy="nothing was submitted; try again when 'scontrol ping' says UP",
                transient=True,
            )
        if not refusals.is_unclear(answer):
            raise SubmitRejected(
                f"Slurm refused {script.name}: {answer.complaint}",
                remedy=refusals.remedy(answer.complaint),
                transient=answer.is_transient,
            )
        if one_of_many:
            raise _ambiguous(answer, job_name, "jobs of this name will be counted before another")
        return self._resolve(answer, job_name)

    def test_only(self, script: Path, *, label: str | None = None) -> str:
        """What Slurm would do with a script (its own words); raises SubmitRejected, in which the
        script is called ``label``."""
        name = label or script.name
        answer = self._run(["sbatch", "--test-only", str(script)], self._submit_timeout_s)
        if answer.returncode is None or refusals.was_not_sent(answer):
            raise _query_failed(answer)
        if answer.returncode != 0:
            raise SubmitRejected(
                f"Slurm would refuse {name}: {answer.complaint}",
                remedy=refusals.remedy(answer.complaint),
                transient=answer.is_transient,
            )
        return answer.complaint.removeprefix("sbatch: ")

    def cancel(self, ident: JobId | str, signal: str | None = None, *, batch: bool = False) -> None:
        """End a job with all its components, or send it a signal (``USR1``).

        ``batch`` signals the batch script instead of the steps. A job that has already ended is
        no error. Raises QueryFailed if Slurm does not answer or says no.
        """
        job = ident if isinstance(ident, JobId) else JobId.parse(ident)
        argv = ["scancel"]
        argv += [f"--clusters={job.cluster}"] if job.cluster else []
        argv += [f"--signal={signal}"] if signal else []
        argv += ["--batch"] if batch else []
        answer = self._run([*argv, job.id])
        if answer.returncode != 0 and answer.is_transient:
            time.sleep(self._pause_s)
            answer = self._run([*argv, job.id])
        ended = ("invalid job id", "already completing or completed")
        if answer.returncode != 0 and not command.says(answer.complaint, ended):
            raise _query_failed(answer)

    def set_time_limit(self, ident: JobId | str, component: str, minutes: int) -> None:
        """Give one component of a job another time limit. Raises QueryFailed if Slurm does not
        answer or says no."""
        job = ident if isinstance(ident, JobId) else JobId.parse(ident)
        where = [f"--clusters={job.cluster}"] if job.cluster else []
        words = ["update", f"JobId={component}", f"TimeLimit={minutes}"]
        answer = self._run(["scontrol", *where, *words])
        if answer.returncode != 0:
            raise _query_failed(answer)

    def _jobs(self, ids: list[str], where: list[str]) -> dict[str, JobInfo]:
        found = self._squeue([*where, "--jobs=" + ",".join(ids)])
        missing = [ident for ident in ids if ident not in found]
        if missing:
            ended = self._sacct([*where, "--jobs=" + ",".join(missing)])
            for ident in missing:
                job = ended.get(ident)
                found[ident] = job if job and job.is_finished else parse.gone(ident)
        return found

    # --- inside -----------------------------------------------------------------------------

    def _run(self, argv: Sequence[str], timeout_s: float | None = None) -> Answer:
        self.calls[argv[0]] = self.calls.get(argv[0], 0) + 1
        # sbatch hands its environment to the job.
        zone = {} if argv[0] == "sbatch" else environments.TIME_ZONE
        environ = {**self._environ, **zone}
        return command.run(argv, environ=environ, timeout_s=timeout_s or self._timeout_s)

    def _squeue(self, selection: Sequence[str]) -> dict[str, JobInfo]:
        argv = ["squeue", "--noheader", "--states=all", f"--format={parse.SQUEUE_FORMAT}"]
        try:
            stdout = self.query([*argv, *selection])
        except QueryFailed as error:
            # Asked for a single job that it has forgotten, squeue calls the id invalid.
            if "invalid job id" in str(error).lower():
                return {}
            raise
        return parse.squeue_jobs(stdout, expand)

    def _sacct(self, selection: Sequence[str]) -> dict[str, JobInfo]:
        """Ended jobs from accounting; nothing where there is none or it does not answer."""
        if not self._has_accounting:
            return {}
        argv = ["sacct", "--allocations", "--noheader", "--parsable2"]
        try:
            stdout = self.query([*argv, f"--format={parse.SACCT_FORMAT}", *selection])
        except (QueryFailed, CommandNotFound) as error:
            self._has_accounting = error.transient
            return {}
        return parse.sacct_jobs(stdout, expand)

    def _resolve(self, answer: Answer, job_name: str) -> JobId:
        """Whether an unclear submission made a job: ask for its name until the time is over."""
        deadline = time.monotonic() + self._look_up_s
        problem: SlurmError | None = None
        while True:
            try:
                jobs = self.find_by_name(job_name)
                problem = None
            except QueryFailed as error:
                jobs, problem = [], error
            if len(jobs) == 1:
                return JobId(jobs[0].id, jobs[0].cluster)
            if len(jobs) > 1:
                ids = ", ".join(job.id for job in jobs)
                raise SubmitAmbiguous(
                    f"several jobs are named {job_name}: {ids}",
                    remedy="cancel all but one of them with scancel, then submit again",
                )
            if time.monotonic() + self._pause_s > deadline:
                break
            time.sleep(self._pause_s)
        again = "run the same submit again in a minute: it looks that name up first and never"
        raise _ambiguous(answer, job_name, f"{again} submits it twice") from problem


def _ambiguous(answer: Answer, job_name: str, remedy: str) -> SubmitAmbiguous:
    said = answer.complaint or "it printed no job id"
    return SubmitAmbiguous(
        f"it is not known whether Slurm took job {job_name} ({said})", remedy=remedy
    )


def _query_failed(answer: Answer) -> QueryFailed:
    transient = answer.is_transient
    return QueryFailed(
        f"{answer.argv[0]} failed: {answer.complaint or f'exit code {answer.returncode}'}",
        remedy="Slurm does not answer just now: try again in a moment ('scontrol ping')"
        if transient
        else None,
        transient=transient,
    )


def wait_until(
    check: Callable[[], bool], *, timeout_s: float, first_s: float = 1.0, most_s: float = 10.0
) -> bool:
    """Ask until the answer is yes or the time is over, less and less often."""
    deadline = time.monotonic() + timeout_s
    pause_s = first_s
    while not check():
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        time.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * 1.6, most_s)
    return True
