"""The deployment's jobs as Slurm lists them: the gateway's own, and those that nobody waits for.

One squeue for both, not more often than the site allows.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterable

from exaslurm.core.codec import loads
from exaslurm.core.submission import Submission, why_stray
from exaslurm.errors import SlurmError, StateError
from exaslurm.rundir import RunDir
from exaslurm.slurm.client import Slurm
from exaslurm.slurm.types import JobInfo
from exaslurm.submit import records
from exaslurm.submit.gateway_jobs import GatewayQueue
from exaslurm.submit.lock import deployment_lock, require_lease
from exaslurm.supervisor.observe import Look
from exaslurm.util.files import read_text

log = logging.getLogger(__name__)

EVERY_S = 15.0


class OwnJobs:
    """Keeps as many gateway jobs as are wanted, and cancels jobs of cells that nobody waits for:
    Slurm took them when their submission had been given up, or a supervisor submitted them that
    had been paused and had lost the deployment by then. (They would end by themselves, too.)"""

    def __init__(
        self, run_dir: RunDir, slurm: Slurm, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._run_dir = run_dir
        self._slurm = slurm
        self._monotonic = monotonic
        self._next_s = -float("inf")
        self._said = ""

    def step(self, look: Look) -> bool:
        """See ``loop.Manager``; never anything else is wanted afterwards."""
        now_s = self._monotonic()
        if look.world.slurm_error is not None or now_s < self._next_s:
            return False
        self._next_s = now_s + max(EVERY_S, look.world.poll_s)
        try:
            # The jobs first: each had its record before it was submitted.
            jobs = self._slurm.named(f"exa-{self._run_dir.deployment}-")
            self._end_strays(jobs)
            self._keep_gateway(look, jobs)
            self._said = ""
        except SlurmError as error:
            if str(error) != self._said:
                log.warning("%s", error)
            self._said = str(error)
        return False

    # --- the gateway's ---------------------------------------------------------------------------

    def _keep_gateway(self, look: Look, jobs: Iterable[JobInfo]) -> None:
        number = look.wish.desired.generation
        plan = look.plans[number]
        if plan.gateway.job is None:
            return
        queue = GatewayQueue(
            plan=plan,
            run_dir=self._run_dir,
            slurm=self._slurm,
            talk=lambda line: log.info("%s", line),
        )
        if queue.is_as_wanted(jobs):
            return
        with deployment_lock(self._run_dir):
            desired = self._run_dir.read_desired()
            if desired is not None and desired.run and desired.generation == number:
                queue.top_up(self._run_dir.generation(number))

    # --- nobody's --------------------------------------------------------------------------------

    def _end_strays(self, jobs: Iterable[JobInfo]) -> None:
        for job in jobs:
            if job.state == "COMPLETING" or self._why(job) is None:
                continue
            with deployment_lock(self._run_dir):
                found = self._why(job)
                if found is None:
                    continue
                why, record = found
                require_lease()
                self._slurm.cancel(job.id)
                log.warning("cancelled job %s (%s): %s", job.id, job.name, why)
                records.add_history(
                    self._run_dir,
                    "cancel stray",
                    generation=record.generation,
                    plan_hash=record.plan_hash,
                    extra={
                        "by": f"supervisor {os.getpid()} on {socket.gethostname()}",
                        "cell": record.cell,
                        "job": job.id,
                        "reason": why,
                    },
                )

    def _why(self, job: JobInfo) -> tuple[str, Submission] | None:
        """Why nobody waits for a job, and the record that says so. A job whose token is not known
        here may be that of a deployment of the same name in another state directory."""
        name = re.escape(self._run_dir.deployment)
        match = re.fullmatch(rf"exa-{name}-(c\d+(?:\.\d+)?)-([0-9a-f]{{8}})", job.name)
        if match is None:
            return None
        turn, token = match[1], match[2]
        for number in self._run_dir.generations():
            record = self._record(number, turn)
            if record is not None and token in (*record.before, record.token):
                why = why_stray(record, job.name, job.id)
                return None if why is None else (why, record)
        return None

    def _record(self, generation: int, turn: str) -> Submission | None:
        path = self._run_dir.generation(generation).submission(turn)
        try:
            return loads(Submission, read_text(path), where=str(path)) if path.exists() else None
        except StateError:
            return None
