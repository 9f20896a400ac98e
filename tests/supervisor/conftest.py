"""A cluster in memory that keeps time: jobs wait, come up, serve, drain and end.

What it does that matters here (states, times, names, refusals) is held against the real Slurm in
``test_lab.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from exaslurm.core.cell import (
    CellRecord,
    CellState,
    EngineLoad,
    NodeState,
    RayCellState,
    ReplicaStatus,
)
from exaslurm.core.codec import dumps
from exaslurm.core.rollout import Rollout, RolloutState
from exaslurm.core.scale import Scale
from exaslurm.core.submission import Submission
from exaslurm.errors import QueryFailed, RegistryError, SubmitRejected
from exaslurm.registry.write import write_record
from exaslurm.rundir import GenerationDir, RunDir
from exaslurm.slurm.client import Slurm
from exaslurm.slurm.parse import gone
from exaslurm.slurm.types import ComponentInfo, JobId, JobInfo
from exaslurm.submit.submit import submit
from exaslurm.supervisor.act import Actor
from exaslurm.supervisor.loop import Manager, Supervisor
from exaslurm.supervisor.observe import Observer, read_turns
from exaslurm.supervisor.wall_time import CalendarWatch
from exaslurm.util.files import write_atomic

SPEC = """\
schema: exaslurm/v1
deployment: hello
site: lab
time_limit: 00:10:00
ray: false
workers: {nodes: 2, nodes_per_cell: 1}
gateway: {home: service}
models:
  - name: pretend
    engine: {kind: simulated}
    shards: [{name: base, replicas: 2}]
"""
LIMIT_S = 600.0
POLL_S = 10.0


@dataclass
class Job:
    """One job. ``turn`` is the cell's name in its script."""

    id: str
    name: str
    turn: str
    submitted_s: float
    start_s: float
    serves_s: float
    limit_s: float
    end: str | None = None
    end_s: float | None = None
    draining: bool = False
    stop_s: float | None = None
    busy: int = 0
    node: str = "c1"
    suspended: bool = False
    stuck: bool = False
    ready: int = 1
    replicas: int = 1
    targets: Mapping[str, int] | None = None


@dataclass
class Cluster(Slurm):
    """Slurm and the cells' controllers. ``refusals`` and ``unclear`` are raised by the next
    submits; of an unclear one the job exists all the same. ``silent``: Slurm gives no answer;
    ``jumped_s``: by how much the supervisor's host is ahead of Slurm's; ``most``: it takes no more
    jobs than so many; ``limit_s``: the time limit that scripts have
    which do not give it in minutes."""

    now_s: float = 1_000_000.0
    wait_s: float = 20.0
    up_s: float = 30.0
    book: dict[str, Job] = field(default_factory=dict)
    refusals: list[Exception] = field(default_factory=list)
    unclear: list[Exception] = field(default_factory=list)
    lost: list[Exception] = field(default_factory=list)
    silent: bool = False
    jumped_s: float = 0.0
    most: int | None = None
    limit_s: float | None = None
    forgets: bool = False
    reservations: str = "No reservations in the system\n"
    hook: Callable[[str], None] = lambda _: None
    scripts: dict[str, str] = field(default_factory=dict)

    def clock(self) -> float:
        return self.now_s + self.jumped_s

    def monotonic(self) -> float:
        return self.now_s

    # --- Slurm -------------------------------------------------------------------------------

    def submit(self, script: Path, *, job_name: str, extra: Sequence[str] = ()) -> JobId:
        self.hook("before sbatch")
        if self.refusals:
            raise self.refusals.pop(0)
        if self.lost:
            raise self.lost.pop(0)
        if self.most is not None and len(self.live()) >= self.most:
            raise SubmitRejected("QOSMaxSubmitJobPerUserLimit")
        text = script.read_text()
        minutes = next(
            line.split("=")[1] for line in text.splitlines() if line.startswith("#SBATCH --time")
        )
        limit_s = (self.limit_s or LIMIT_S) if ":" in minutes else 60.0 * int(minutes)
        start_s = self.now_s + self.wait_s
        job = Job(
            id=str(100 + len(self.book)),
            name=job_name,
            turn=text.split("--cell ")[1].split()[0].strip("'"),
            submitted_s=self.now_s,
            start_s=start_s,
            serves_s=start_s + self.up_s,
            limit_s=limit_s,
        )
        self.book[job.id] = job
        self.scripts[job.turn] = text
        self.hook("after sbatch")
        if self.unclear:
            raise self.unclear.pop(0)
        return JobId(job.id)

    def query(self, argv: Sequence[str]) -> str:
        if self.silent:
            raise QueryFailed("scontrol failed: Socket timed out", transient=True)
        if argv[0] == "sinfo":
            return "".join(f"c{n} {part}\n" for n in range(1, 5) for part in ("cpu", "gpu"))
        return self.reservations

    def jobs(self, ids: Sequence[str]) -> dict[str, JobInfo]:
        self._check()
        found = {ident: self.book.get(ident) for ident in ids}
        return {ident: self._info(job) if job else gone(ident) for ident, job in found.items()}

    def time_limits(self, ids: Sequence[str]) -> dict[str, dict[str, float | None]]:
        return {i: {i: self.book[i].limit_s} for i in ids if self.book[i].end is None}

    def set_time_limit(self, ident: JobId | str, component: str, minutes: int) -> None:
        self.hook("before scontrol")
        self.book[component].limit_s = 60.0 * minutes
        self.hook("after scontrol")

    def find_by_name(self, name: str, *, since_s: float | None = None) -> list[JobInfo]:
        self._check()
        return [self._info(job) for job in self.book.values() if job.name == name]

    def cancel(self, ident: JobId | str, signal: str | None = None, *, batch: bool = False) -> None:
        self.hook("before scancel")
        assert isinstance(ident, JobId)
        self.finish(self.book[ident.id], "CANCELLED")
        self.hook("after scancel")

    def _check(self) -> None:
        if self.silent:
            raise QueryFailed("squeue failed: Socket timed out", transient=True)

    def _info(self, job: Job) -> JobInfo:
        if job.end is not None and self.forgets:
            return gone(job.id)
        if job.stuck:
            part = ComponentInfo(
                id=job.id, offset=0, state="COMPLETING", reason="", nodes=(job.node,)
            )
            return JobInfo(
                id=job.id,
                name=job.name,
                state="COMPLETING",
                reason="",
                nodes=part.nodes,
                start_s=job.start_s,
                end_s=self.now_s,
                components=(part,),
            )
        state = job.end or ("RUNNING" if self.now_s >= job.start_s else "PENDING")
        running = state == "RUNNING"
        if running and job.suspended:
            state = "SUSPENDED"
        part = ComponentInfo(id=job.id, offset=0, state=state, reason="", nodes=(job.node,))
        return JobInfo(
            id=job.id,
            name=job.name,
            state=state,
            reason="" if running or job.end else "Resources",
            nodes=part.nodes if running else (),
            start_s=job.start_s,
            end_s=job.start_s + job.limit_s if running else job.end_s,
            components=(part,),
        )

    # --- time and controllers ----------------------------------------------------------------

    def finish(self, job: Job, end: str) -> None:
        if job.end is None:
            job.end, job.end_s = end, self.now_s

    def live(self) -> list[Job]:
        return [job for job in self.book.values() if job.end is None]

    def serving(self, cell: str) -> list[Job]:
        """Jobs of a cell that take requests now."""
        return [
            job
            for job in self.live()
            if job.turn.split(".")[0] == cell
            and self.now_s >= job.serves_s
            and not job.draining
            and job.ready
        ]

    def advance(self, seconds: float, run_dir: RunDir) -> None:
        self.now_s += seconds
        for job in self.live():
            if self.now_s >= job.start_s + job.limit_s:
                self.finish(job, "TIMEOUT")
            elif job.stop_s is not None and self.now_s >= job.stop_s + 5:
                self.finish(job, "COMPLETED")
            elif self.now_s >= job.start_s:
                write_record(run_dir, _record(job))

    def ask(self, urls: Mapping[str, str], key: str) -> dict[str, CellState]:
        assert key
        jobs = {j.id: j for j in self.live() if self.now_s >= j.start_s and not j.suspended}
        return {
            turn: _state(jobs[url.rpartition("/")[2]], self.now_s)
            for turn, url in urls.items()
            if url.rpartition("/")[2] in jobs
        }

    def drain(self, url: str, key: str) -> None:
        self.hook("before drain")
        self._of(url, key).draining = True
        self.hook("after drain")

    def stop(self, url: str, key: str, grace_s: float) -> None:
        self.hook("before stop")
        job = self._of(url, key)
        job.draining, job.stop_s = True, job.stop_s or self.now_s
        self.hook("after stop")

    def retarget(self, url: str, key: str, replicas: Mapping[str, int] | None) -> None:
        self.hook("before retarget")
        self._of(url, key).targets = replicas
        self.hook("after retarget")

    def _of(self, url: str, key: str) -> Job:
        assert key
        job = self.book[url.rpartition("/")[2]]
        if job.end is not None:
            raise RegistryError("no answer from the controller")
        return job


def _record(job: Job) -> CellRecord:
    return CellRecord(
        deployment="hello",
        cell=job.turn,
        generation=1,
        plan_hash="",
        job_id=job.id,
        seq=1,
        lease_s=30.0,
        state_url=f"http://c1/{job.id}",
        replicas=(),
    )


def _state(job: Job, now_s: float) -> CellState:
    up = now_s >= job.serves_s
    state: Any = "draining" if job.draining else "ready" if up else "loading"
    replicas = tuple(
        ReplicaStatus(
            id=f"{job.turn}-r{n:04d}",
            model="pretend",
            shard="base",
            served_names=("pretend",),
            state=state if n < job.ready or job.draining else "failed",
            node="c1",
            url="http://c1:1",
            load=EngineLoad(running=job.busy, waiting=0, kv_use=0.0),
        )
        for n in range(job.replicas)
    )
    phase: Any = "stopping" if job.stop_s else "serving" if state == "ready" else "engines"
    if job.ready < job.replicas or (job.draining and not job.stop_s):
        phase = "degraded"
    return CellState(
        deployment="hello",
        cell=job.turn,
        plan_hash="",
        job_id=job.id,
        seq=1,
        phase=phase,
        cause=None,
        nodes=(
            NodeState(node="c0", het_group=0, state="joined"),
            NodeState(node="c1", het_group=1, state="joined" if job.ready else "lost"),
        ),
        ray=RayCellState(state="off"),
        replicas=replicas,
        targets=job.targets,
    )


@dataclass
class Site:
    """A deployment on the cluster, and the supervisor that looks after it."""

    directory: Path
    cluster: Cluster = field(default_factory=Cluster)
    spec: str = SPEC
    supervisor: Supervisor = field(init=False)

    def __post_init__(self) -> None:
        (self.directory / "spec.yaml").write_text(self.spec)
        submit(
            self.directory / "spec.yaml",
            environ=self.environ,
            slurm=self.cluster,
        )
        # submit has the machine's time.
        for name, item in self.turns().items():
            self.write(name, replace(item, created_s=self.cluster.now_s,
                                     submitted_s=self.cluster.now_s))  # fmt: skip
        self.start_supervisor()

    @property
    def environ(self) -> dict[str, str]:
        return {
            "EXASLURM_HOME": str(self.directory / "state"),
            "HOME": str(self.directory),
            "USER": "ada",
            "PATH": "/usr/bin:/bin",
        }

    @property
    def run_dir(self) -> RunDir:
        return RunDir(self.directory / "state" / "exaslurm" / "hello")

    @property
    def generation(self) -> GenerationDir:
        return self.run_dir.generation(1)

    def turns(self) -> dict[str, Submission]:
        return read_turns(self.run_dir, self.run_dir.generations())

    def write(self, turn: str, item: Submission) -> None:
        from exaslurm.submit.records import write_submission

        assert item.cell == turn
        write_submission(self.run_dir.generation(item.generation), item)

    def plan_again(self) -> GenerationDir:
        """Another generation with the same plan, of which nothing runs yet."""
        new = self.run_dir.generation(self.run_dir.generations()[-1] + 1)
        new.make(("c000", "c001"))
        new.spec.write_text(self.generation.spec.read_text())
        new.plan.write_text(self.generation.plan.read_text())
        return new

    def roll_out(self, state: RolloutState, lanes: Mapping[str, tuple[int, ...]]) -> None:
        """Say that a rollout from generation 1 to 2 is in this state."""
        rollout = Rollout(stable=1, candidate=2, state=state, lanes=lanes)
        write_atomic(self.run_dir.rollout, dumps(rollout))

    def scale(self, replicas: Mapping[str, int]) -> None:
        """Say how many replicas are wanted."""
        write_atomic(self.run_dir.scale, dumps(Scale(replicas=replicas)))

    def start_supervisor(self) -> None:
        """A new one, which knows nothing of what an earlier one saw."""
        self.supervisor = Supervisor(
            self.run_dir,
            Observer(
                self.run_dir,
                self.cluster,
                ask=self.ask,
                calendar=CalendarWatch(self.cluster, self.cluster.clock).current,
                clock=self.cluster.clock,
                monotonic=self.cluster.monotonic,
            ),
            Actor(
                run_dir=self.run_dir,
                slurm=self.cluster,
                environ=self.environ,
                controllers=self.cluster,
                clock=self.cluster.clock,
            ),
            managers=self.managers(),
            clock=self.cluster.clock,
        )

    def ask(self, urls: Mapping[str, str], key: str) -> dict[str, CellState]:
        """What controllers answer."""
        return self.cluster.ask(urls, key)

    def managers(self) -> Sequence[Manager]:
        return ()

    def run(self, seconds: float) -> None:
        """Time passes, with a look every ten seconds."""
        for _ in range(int(seconds / POLL_S)):
            self.cluster.advance(POLL_S, self.run_dir)
            self.supervisor.round()

    def note(self, cell: str = "c000") -> str:
        notes: dict[str, str] = json.loads(self.run_dir.supervisor.read_text())["cells"]
        return notes.get(cell, "")

    def history(self, verb: str) -> list[dict[str, Any]]:
        lines = map(json.loads, self.run_dir.history.read_text().splitlines())
        return [line for line in lines if line["verb"] == verb]

    def only(self, turn: str) -> Job:
        """The one job of a turn."""
        (job,) = (job for job in self.cluster.book.values() if job.turn == turn)
        return job


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    return Site(tmp_path)
