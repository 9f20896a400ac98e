"""``stop``: everything of a deployment ends, and what cannot be ended is named."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from exaslurm.core import codec
from exaslurm.core.cell import CellRecord
from exaslurm.core.submission import Submission
from exaslurm.errors import ExaslurmError, QueryFailed, StateError, WaitTimeout
from exaslurm.keys.secrets import read_secret
from exaslurm.rundir import GenerationDir, RunDir
from exaslurm.slurm.client import Slurm, wait_until
from exaslurm.slurm.types import JobId
from exaslurm.submit import records
from exaslurm.submit.detach import reap
from exaslurm.submit.gateway import stop_gateways
from exaslurm.submit.gateway_jobs import cancel_waiting, stop_gateway_jobs
from exaslurm.submit.lock import deployment_lock
from exaslurm.submit.survey import GenerationSurvey, Surveyor, job_key
from exaslurm.submit.talk import Talk, quiet
from exaslurm.util.files import read_text
from exaslurm.util.process import is_alive, send_signal

_ASK_TIMEOUT_S = 3.0
_DEFAULT_DRAIN_S = 30.0
# What a controller and its agents need beside the time for requests in flight.
_ENDING_S = 10.0
_GATEWAY_S = 10.0


@dataclass(frozen=True, slots=True)
class StopResult:
    """``ended``: jobs and processes that this call has ended, by cell and id."""

    ended: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Target:
    """One submission that may still run."""

    generation: GenerationDir
    submission: Submission

    @property
    def is_local(self) -> bool:
        return self.submission.job_id == "local"

    def __str__(self) -> str:
        item = self.submission
        what = f"process {item.pid} on {item.host}" if self.is_local else f"job {item.job_id}"
        return f"cell {item.cell} ({what})"


def stop(
    run_dir: RunDir,
    *,
    timeout_s: float = 120.0,
    talk: Talk = quiet,
    environ: Mapping[str, str] | None = None,
    slurm: Slurm | None = None,
) -> StopResult:
    """End a deployment and wait until it has ended, ``timeout_s`` at most.

    Controllers are asked first, so that requests in flight may finish; whatever has not ended
    after that is cancelled. Doing it again is harmless. A full disk, a used up quota or a damaged
    file is told and does not keep anything alive. Raises DeploymentError if there is no such
    deployment, QueryFailed if Slurm does not answer, WaitTimeout that names what is left,
    StateError if everything has ended but that could not be written down.
    """
    run_dir.require()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(deployment_lock(run_dir))
        except StateError as error:
            talk(f"stopping without the deployment's lock: {error}")
        return _Stop(
            run_dir=run_dir,
            deadline=time.monotonic() + timeout_s,
            talk=talk,
            slurm=slurm or Slurm(os.environ if environ is None else environ),
        ).run()


@dataclass(slots=True, kw_only=True)
class _Stop:
    run_dir: RunDir
    deadline: float
    talk: Talk
    slurm: Slurm
    hostname: str = field(default_factory=socket.gethostname)
    _drain_s: float = 0.0
    _problem: ExaslurmError | None = None
    _unwritten: StateError | None = None

    def run(self) -> StopResult:
        number = self._generation()
        # First of all: from now on nobody starts anything for this deployment.
        with self._writing():
            records.write_desired(self.run_dir, run=False, generation=number)
            records.end_rollout(self.run_dir, "the deployment was stopped")
        cancel_waiting(self.run_dir, self.slurm, self.talk)
        surveys = Surveyor(self.run_dir, lambda: self.slurm, self.talk, lenient=True).survey()
        targets = [
            _Target(each.generation, each.submissions[cell])
            for each in surveys
            for cell in each.cells("alive", "unknown")
        ]
        left = self._end(surveys, targets) if targets else []
        self._mark_stopped(surveys, left)
        remaining = [str(target) for target in left]
        # They drain because desired.json says so, if it does.
        patience_s = max(_GATEWAY_S, self._left_s()) if self._unwritten is None else 0.0
        remaining += stop_gateways(self.run_dir, timeout_s=patience_s, talk=self.talk)
        remaining += stop_gateway_jobs(
            self.run_dir, self.slurm, timeout_s=min(patience_s, self._left_s()), talk=self.talk
        )
        ended = tuple(str(target) for target in targets if target not in left)
        if ended or remaining:
            with self._writing():
                records.add_history(
                    self.run_dir,
                    "stop",
                    generation=number,
                    plan_hash=surveys[-1].plan.hash if surveys and surveys[-1].plan else "",
                )
        if remaining:
            raise WaitTimeout(
                f"deployment {self.run_dir.deployment!r}: not ended: {'; '.join(remaining)}",
                remedy="run 'exaslurm stop' again, on the named host where one is named",
            ) from self._problem
        if self._unwritten is not None:
            raise StateError(
                f"deployment {self.run_dir.deployment!r} has ended, but that could not be written "
                "down",
                remedy="mend that and run 'exaslurm stop' again: gateways on other hosts go on "
                "until they can read it",
            ) from self._unwritten
        return StopResult(ended)

    def _generation(self) -> int:
        """The one that runs: of a rollout, or after one that was taken back, not the newest."""
        with contextlib.suppress(StateError):
            wanted = self.run_dir.current()
            return wanted.number if wanted is not None else 0
        return (self.run_dir.generations() or [0])[-1]

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Nothing stays alive because something cannot be written down."""
        try:
            yield
        except StateError as error:
            self._unwritten = self._unwritten or error

    # --- asking, then telling -----------------------------------------------------------------

    def _end(self, surveys: Sequence[GenerationSurvey], targets: list[_Target]) -> list[_Target]:
        """End the targets; returns those that are left."""
        self._drain_s = max(
            (each.plan.timeouts.drain_s for each in surveys if each.plan), default=_DEFAULT_DRAIN_S
        )
        asked = self._ask_controllers(targets)
        if asked:
            self.talk(f"asked {len(asked)} cell(s) to stop; requests in flight may finish")
            grace_s = min(self._drain_s + _ENDING_S, self._left_s() / 2)
            self._wait(asked, grace_s)
        running = self._running(targets)
        for target in running:
            self._cancel(target)
        if running:
            self.talk("waiting for " + ", ".join(map(str, running)))
        self._wait(running, self._left_s())
        return self._running(running)

    def _ask_controllers(self, targets: list[_Target]) -> list[_Target]:
        """The targets whose controller has taken the request to stop."""
        try:
            key = read_secret(self.run_dir.internal_key)
        except StateError:
            return []
        with ThreadPoolExecutor(max_workers=16) as pool:
            answers = pool.map(lambda target: self._ask(target, key), targets)
            return [target for target, taken in zip(targets, answers, strict=True) if taken]

    def _ask(self, target: _Target, key: str) -> bool:
        if target.submission.is_elsewhere(self.hostname):
            return False
        path = self.run_dir.record(target.submission.cell)
        try:
            record = codec.loads(CellRecord, read_text(path), where=str(path))
        except StateError:
            return False  # it has not come up far enough to have a controller
        if record.job_id != target.submission.job_id:
            return False
        request = urllib.request.Request(
            record.state_url.rstrip("/") + "/v1/stop",
            data=json.dumps({"grace_s": self._drain_s}).encode(),
            headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
            method="POST",
        )
        # Proxies are for the internet; a compute node is not reached through one.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=_ASK_TIMEOUT_S):
                return True
        except (OSError, ValueError):
            return False  # it is gone already, or not to be reached from here: Slurm ends it

    def _cancel(self, target: _Target) -> None:
        item = target.submission
        if target.is_local:
            if item.host == self.hostname and item.pid and item.start_ticks:
                send_signal(item.pid, item.start_ticks, signal.SIGTERM)
            return
        try:
            self.slurm.cancel(JobId(str(item.job_id), item.cluster))
        except QueryFailed as error:
            self._problem = error
            self.talk(f"{target}: {error}")

    # --- waiting ------------------------------------------------------------------------------

    def _wait(self, targets: list[_Target], timeout_s: float) -> bool:
        here = [t for t in targets if not t.submission.is_elsewhere(self.hostname)]
        first_s = 0.2 if all(target.is_local for target in here) else 1.0
        return wait_until(lambda: not self._running(here), timeout_s=timeout_s, first_s=first_s)

    def _running(self, targets: list[_Target]) -> list[_Target]:
        """Those that have not ended, or of which it is not known."""
        ids = [job_key(target.submission) for target in targets if not target.is_local]
        try:
            jobs = self.slurm.jobs(ids)
        except QueryFailed as error:  # nothing is known: ask again
            self._problem, jobs = error, {}
        ended = {ident for ident, job in jobs.items() if job.is_finished}
        return [
            target
            for target in targets
            if (self._is_local_alive(target) if target.is_local else True)
            and job_key(target.submission) not in ended
        ]

    def _is_local_alive(self, target: _Target) -> bool:
        item = target.submission
        if item.host != self.hostname or item.pid is None:
            return item.host != self.hostname
        if is_alive(item.pid, item.start_ticks or 0):
            return True
        reap(item.pid)
        return False

    def _left_s(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    # --- writing down -------------------------------------------------------------------------

    def _mark_stopped(self, surveys: Sequence[GenerationSurvey], left: list[_Target]) -> None:
        """Note the end of what has ended, and take back what it published."""
        for each in surveys:
            for cell, item in each.submissions.items():
                if item.state == "stopped" or any(t.submission == item for t in left):
                    continue
                with self._writing():
                    records.write_submission(each.generation, replace(item, state="stopped"))
                with contextlib.suppress(OSError):
                    self.run_dir.record(cell).unlink()
