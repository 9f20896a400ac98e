"""Starting one cell: write the intent, act, write the answer."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from exaslurm import __version__
from exaslurm.core import codec
from exaslurm.core.plan import Plan
from exaslurm.core.submission import Submission
from exaslurm.errors import ExaslurmError, StateError, SubmitAmbiguous, SubmitRejected
from exaslurm.render.scripts import job_name
from exaslurm.rundir import GenerationDir, RunDir
from exaslurm.slurm.client import Slurm
from exaslurm.slurm.types import JobId
from exaslurm.submit import local, records
from exaslurm.submit.exclude import exclude_option, excluded_nodes
from exaslurm.submit.lock import require_lease
from exaslurm.submit.talk import Talk
from exaslurm.util.files import read_text

_TOKENS_KEPT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CellStarter:
    """Starts cells of a deployment whose files are written. Used under the deployment's lock."""

    plan: Plan
    run_dir: RunDir
    environ: Mapping[str, str]
    talk: Talk
    slurm: Slurm
    clock: Callable[[], float] = time.time

    def start(self, generation: GenerationDir, cell: str, *, refusals: int = 0) -> Submission:
        """Start a cell, or a turn of it; what was written down of it.

        ``refusals``: how often it was refused before. After a crash the intent is looked up.
        Raises SubmitRejected, SubmitAmbiguous (it is written down, too), CommandNotFound,
        StateError; TakenOver if somebody else has the deployment by now.
        """
        token = secrets.token_hex(4)
        name = f"{job_name(self.plan, self.plan.cell(cell))}-{token}"
        intent = Submission(
            deployment=self.plan.deployment,
            cell=cell,
            generation=generation.number,
            plan_hash=self.plan.hash,
            token=token,
            job_name=name,
            state="intent",
            created_s=self.clock(),
            host=socket.gethostname(),
            refusals=refusals,
            before=_tokens_before(generation, cell),
        )
        records.write_submission(generation, intent)
        try:
            started = self._run_cell(generation, intent)
        except ExaslurmError as error:
            unclear = isinstance(error, SubmitAmbiguous)
            failed = replace(
                intent,
                state="ambiguous" if unclear else "refused",
                message=str(error),
                refusals=refusals if unclear else refusals + 1,
            )
            with contextlib.suppress(StateError):  # the first error is the one to show
                records.write_submission(generation, failed)
            raise
        done = replace(started, state="submitted", submitted_s=self.clock(), refusals=0)
        records.write_submission(generation, done)
        return done

    def _run_cell(self, generation: GenerationDir, intent: Submission) -> Submission:
        require_lease()
        if self.plan.layout == "local":
            pid, ticks = local.start_init(
                self.plan,
                intent.cell,
                generation,
                self.run_dir,
                environ=self.environ,
            )
            self.talk(f"cell {intent.cell}: started as process {pid}")
            return replace(intent, job_id="local", pid=pid, start_ticks=ticks)
        job = self._submit_job(generation, intent)
        self.talk(f"cell {intent.cell}: submitted as job {job.id}")
        return replace(intent, job_id=job.id, cluster=job.cluster)

    def _submit_job(self, generation: GenerationDir, intent: Submission) -> JobId:
        """Submit without the nodes that earlier jobs could not use, or with them if Slurm says
        that the others are too few: the preflight will leave them out again."""
        script, comment = generation.script(intent.cell), f"--comment={comment_of(self.plan)}"
        known = excluded_nodes(self.run_dir, self.clock())
        option = exclude_option(self.plan.cell(intent.cell), known)
        for item in known:
            until = time.strftime("%Y-%m-%d %H:%M", time.localtime(item.until_s))
            self.talk(f"cell {intent.cell}: without {item.node} until {until}: {item.reason}")
        try:
            return self.slurm.submit(script, job_name=intent.job_name, extra=(comment, *option))
        except SubmitRejected as error:
            if not option or error.transient:
                raise
            self.talk(f"not without them: {error}")
        require_lease()
        return self.slurm.submit(script, job_name=intent.job_name, extra=(comment,))


def _tokens_before(generation: GenerationDir, cell: str) -> tuple[str, ...]:
    """Tokens of this turn so far: Slurm may still come up with one of their jobs."""
    path = generation.submission(cell)
    try:
        last = codec.loads(Submission, read_text(path), where=str(path))
    except StateError:
        return ()  # this is its first submission
    return (*last.before, last.token)[-_TOKENS_KEPT:]


def comment_of(plan: Plan) -> str:
    """For accounting: which jobs of a cluster are exaslurm's, and which are of one plan."""
    data = {"tool": "exaslurm", "v": __version__, "plan": plan.hash[:12]}
    return json.dumps(data, separators=(",", ":"))
