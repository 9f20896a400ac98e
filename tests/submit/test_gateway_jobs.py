"""The jobs of a gateway that runs in one, on a queue in memory."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from exaslurm.core.submission import GatewayJobs
from exaslurm.errors import (
    CommandNotFound,
    ExaslurmError,
    QueryFailed,
    SubmitAmbiguous,
    SubmitRejected,
    WaitTimeout,
)
from exaslurm.rundir import RunDir
from exaslurm.slurm.client import Slurm
from exaslurm.slurm.parse import gone
from exaslurm.slurm.types import ComponentInfo, JobId, JobInfo
from exaslurm.submit.gateway_jobs import GatewayQueue, read_book
from exaslurm.submit.lock import deployment_lock
from exaslurm.submit.records import read_plan
from exaslurm.submit.stop import stop
from exaslurm.submit.submit import submit
from exaslurm.submit.survey import SETTLED_S

SPEC = """\
schema: exaslurm/v1
deployment: hello
site: lab
time_limit: 00:10:00
workers: {nodes: 1}
gateway: {home: job}
models:
  - name: pretend
    engine: {kind: simulated}
    shards: [{name: base, replicas: 1}]
"""


@dataclass
class Queue(Slurm):
    """Slurm as it is with jobs of one name: one of them runs. ``answers`` come before those of
    the next submits: an error, and whether the job is there all the same, and when."""

    known: dict[str, JobInfo] = field(default_factory=dict)
    scripts: dict[str, str] = field(default_factory=dict)
    answers: list[tuple[Exception, float | None]] = field(default_factory=list)
    late: list[tuple[float, str]] = field(default_factory=list)
    now_s: float = 1_000_000.0
    silent: bool = False

    def clock(self) -> float:
        return self.now_s

    def submit(
        self, script: Path, *, job_name: str, extra: Sequence[str] = (), one_of_many: bool = False
    ) -> JobId:
        gateway = "-gateway-" in job_name
        assert one_of_many == gateway, "a name that jobs share is looked up by nobody"
        if self.answers and gateway:
            error, appears_s = self.answers.pop(0)
            if appears_s is not None:
                self.late.append((self.now_s + appears_s, job_name))
                self.pass_time(0)
            raise error
        ident = self._add(job_name)
        self.scripts[ident] = script.read_text()
        return JobId(ident)

    def _add(self, name: str) -> str:
        ident = str(100 + len(self.known))
        part = ComponentInfo(id=ident, offset=0, state="PENDING", reason="", nodes=())
        self.known[ident] = JobInfo(
            id=ident, name=name, state="PENDING", reason="Dependency", nodes=(), start_s=None,
            end_s=None, components=(part,),
        )  # fmt: skip
        self._start()
        return ident

    def _start(self) -> None:
        """Of each name one runs."""
        for name in {job.name for job in self.known.values()}:
            jobs = [job for job in self.known.values() if job.name == name]
            if not any(job.is_running for job in jobs):
                first = next((job for job in jobs if job.is_pending), None)
                if first is not None:
                    run = replace(first, state="RUNNING", reason="", nodes=("c1",))
                    self.known[first.id] = run

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for at_s, name in [item for item in self.late if item[0] <= self.now_s]:
            self.late.remove((at_s, name))
            self._add(name)

    def end(self, ident: str, state: str = "COMPLETED") -> None:
        self.known[ident] = replace(self.known[ident], state=state, nodes=())
        self._start()

    def named(self, prefix: str) -> list[JobInfo]:
        if self.silent:
            raise QueryFailed("squeue failed: Socket timed out", transient=True)
        jobs = self.known.values()
        return [job for job in jobs if job.name.startswith(prefix) and not job.is_finished]

    def query(self, argv: Sequence[str]) -> str:
        raise QueryFailed(f"{argv[0]}: nothing is said of limits here")

    def find_by_name(self, name: str, *, since_s: float | None = None) -> list[JobInfo]:
        return [job for job in self.known.values() if job.name == name]

    def jobs(self, ids: Sequence[str]) -> dict[str, JobInfo]:
        return {ident: self.known.get(ident) or gone(ident) for ident in ids}

    def cancel(self, ident: JobId | str, signal: str | None = None, *, batch: bool = False) -> None:
        ident = ident.id if isinstance(ident, JobId) else ident
        if not self.known[ident].is_finished:
            self.end(ident, "CANCELLED")

    def gateways(self) -> list[JobInfo]:
        return self.named("exa-hello-gateway-")


@dataclass
class Desk:
    directory: Path
    queue: Queue = field(default_factory=Queue)
    said: list[str] = field(default_factory=list)

    @property
    def run_dir(self) -> RunDir:
        return RunDir(self.directory / "state" / "exaslurm" / "hello")

    @property
    def environ(self) -> dict[str, str]:
        return {"EXASLURM_HOME": str(self.directory / "state"), "HOME": str(self.directory),
                "USER": "ada", "PATH": "/usr/bin:/bin"}  # fmt: skip

    def submit(self) -> None:
        path = self.directory / "spec.yaml"
        path.write_text(SPEC)
        submit(path, environ=self.environ, talk=self.said.append, slurm=self.queue)

    def stop(self, timeout_s: float = 0.2) -> None:
        stop(self.run_dir, timeout_s=timeout_s, talk=self.said.append, environ=self.environ,
             slurm=self.queue)  # fmt: skip

    def top_up(self) -> None:
        generation = self.run_dir.generation(1)
        plan = read_plan(generation)
        assert plan is not None
        queue = GatewayQueue(
            plan=plan,
            run_dir=self.run_dir,
            slurm=self.queue,
            talk=self.said.append,
            clock=self.queue.clock,
        )
        with deployment_lock(self.run_dir):
            queue.top_up(generation)

    def book(self) -> GatewayJobs:
        found = read_book(self.run_dir)
        assert found is not None
        return found


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    made = Desk(tmp_path)
    made.submit()
    return made


def test_submit_brings_up_one_and_spares(desk: Desk) -> None:
    jobs = desk.queue.gateways()
    assert [job.state for job in jobs] == ["RUNNING", "PENDING", "PENDING"]
    assert len({job.name for job in jobs}) == 1
    assert desk.book().ids == tuple(job.id for job in jobs)
    script = desk.queue.scripts[jobs[0].id]
    assert "#SBATCH --dependency=singleton\n" in script
    assert f"#SBATCH --job-name={jobs[0].name}\n" in script
    assert f"#SBATCH --output={desk.run_dir.router_log}\n#SBATCH --open-mode=append" in script
    assert "-m exaslurm.gateway" in script
    desk.submit()
    assert desk.queue.gateways() == jobs


def test_one_ends_and_another_waits_in_its_place(desk: Desk) -> None:
    desk.queue.end(desk.queue.gateways()[0].id)
    desk.top_up()
    jobs = desk.queue.gateways()
    assert [job.state for job in jobs] == ["RUNNING", "PENDING", "PENDING"]
    assert desk.book().ids == tuple(job.id for job in jobs)
    before = dict(desk.queue.known)
    desk.top_up()
    assert desk.queue.known == before


def test_an_unclear_submission_is_waited_for(desk: Desk) -> None:
    """Found or not: in the end there are as many as shall be, and never one more."""
    for appears_s in (None, 0.0, 60.0):
        desk.queue.end(desk.queue.gateways()[0].id)
        desk.queue.answers = [(SubmitAmbiguous("it is not known"), appears_s)]
        with pytest.raises(SubmitAmbiguous):
            desk.top_up()
        for _ in range(20):
            desk.queue.pass_time(10)
            desk.top_up()
            assert len(desk.queue.gateways()) <= 3
        assert len(desk.queue.gateways()) == 3
        assert desk.book().asked_s is None


def test_one_that_comes_after_all_hope_is_taken_away(desk: Desk) -> None:
    desk.queue.end(desk.queue.gateways()[0].id)
    desk.queue.answers = [(SubmitAmbiguous("it is not known"), SETTLED_S + 30)]
    with pytest.raises(SubmitAmbiguous):
        desk.top_up()
    desk.queue.pass_time(SETTLED_S + 1)
    desk.top_up()
    running = next(job.id for job in desk.queue.gateways() if job.is_running)
    desk.queue.pass_time(60)
    assert len(desk.queue.gateways()) == 4
    desk.top_up()
    jobs = desk.queue.gateways()
    assert len(jobs) == 3
    assert running in [job.id for job in jobs if job.is_running]


def test_a_refusal_is_told_and_tried_again_later_and_later(desk: Desk) -> None:
    desk.queue.end(desk.queue.gateways()[0].id)
    for pause_s in (0, 31, 61):
        desk.queue.answers = [(SubmitRejected("QOSMaxSubmitJobPerUserLimit"), None)]
        desk.queue.pass_time(pause_s)
        with pytest.raises(SubmitRejected):
            desk.top_up()
        desk.top_up()  # not yet
        assert len(desk.queue.gateways()) == 2
    assert (desk.book().refusals, desk.book().asked_s) == (3, None)
    assert "QOSMax" in desk.book().message
    desk.queue.pass_time(121)
    desk.top_up()
    assert len(desk.queue.gateways()) == 3
    assert (desk.book().refusals, desk.book().message) == (0, "")


def test_cells_are_submitted_whatever_becomes_of_the_gateway(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.queue.answers = [(CommandNotFound("no sbatch"), None)]
    desk.submit()
    assert desk.queue.gateways() == []
    assert [job.name[:15] for job in desk.queue.known.values()] == ["exa-hello-c000-"]
    assert any("the gateway did not start" in line for line in desk.said)


def test_stop_ends_all_of_them(desk: Desk) -> None:
    desk.stop()
    assert desk.queue.gateways() == []
    assert read_book(desk.run_dir) is None
    running = [line for line in desk.said if "cancelling job" in line]
    waiting = [line for line in desk.said if "waited for its turn" in line]
    assert (len(running), len(waiting)) == (1, 2)
    desk.stop()


def test_a_stop_that_cannot_ask_says_so(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = iter([desk.queue.gateways()])

    def once(prefix: str) -> Any:
        try:
            return next(asked)
        except StopIteration:
            raise QueryFailed("squeue failed") from None

    monkeypatch.setattr(desk.queue, "named", once)
    with pytest.raises(WaitTimeout, match="gateway jobs named exa-hello-gateway"):
        desk.stop()


def test_other_deployments_are_left_alone(desk: Desk, tmp_path: Path) -> None:
    """Of the same name, in another state directory."""
    (tmp_path / "other").mkdir()
    other = Desk(tmp_path / "other", queue=desk.queue)
    other.submit()
    assert len(desk.queue.gateways()) == 6
    desk.stop()
    assert len(desk.queue.gateways()) == 3
    assert len(other.book().ids) == 3


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens(tmp_path: Path, seed: int) -> None:
    """Ends, refusals, lost answers and crashes at random: never two that serve, never more than
    shall be for long, and in quiet times exactly as many."""
    chance = random.Random(seed)
    desk = Desk(tmp_path)
    desk.submit()
    for _ in range(40):
        event = chance.random()
        live = desk.queue.gateways()
        if event < 0.3 and live:
            desk.queue.end(chance.choice(live).id, "NODE_FAIL")
        if event > 0.6:
            appears_s = chance.choice([None, 0.0, 30.0, SETTLED_S + 50])
            desk.queue.answers = [(SubmitAmbiguous("it is not known"), appears_s)]
        elif event > 0.5:
            desk.queue.answers = [(SubmitRejected("limit"), None)]
        desk.queue.pass_time(chance.choice([1, 20, 200]))
        try:
            desk.top_up()
        except ExaslurmError:
            continue
        assert sum(job.is_running for job in desk.queue.gateways()) <= 1
        assert len(desk.queue.gateways()) <= 3
    desk.queue.answers = []
    for _ in range(8):
        desk.queue.pass_time(SETTLED_S + 60)
        desk.top_up()
        desk.queue.pass_time(900)
        desk.top_up()
    assert len(desk.queue.gateways()) == 3
