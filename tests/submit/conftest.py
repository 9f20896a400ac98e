"""A queue in memory, to stand where Slurm cannot be made to stand: crashed in the middle, silent,
or with jobs that ended last week. ``test_lab.py`` does the ordinary things with the real one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from exaslurm.core.codec import loads
from exaslurm.core.submission import Submission
from exaslurm.errors import ExaslurmError, QueryFailed, SubmitRejected
from exaslurm.rundir import RunDir
from exaslurm.slurm.client import Slurm
from exaslurm.slurm.parse import gone
from exaslurm.slurm.types import ComponentInfo, JobId, JobInfo
from exaslurm.submit.stop import StopResult, stop
from exaslurm.submit.submit import SubmitResult, submit

SPEC = """\
schema: exaslurm/v1
deployment: hello
site: lab
time_limit: 00:10:00
workers: {{nodes: {nodes}, nodes_per_cell: 1}}
gateway: {{home: service}}
models:
  - name: pretend
    engine: {{kind: simulated}}
    shards: [{{name: base, replicas: {nodes}}}]
"""


@dataclass
class Queue(Slurm):
    """Jobs by id. ``failure`` is raised by the next submit, after the job was made if ``late``."""

    known: dict[str, JobInfo] = field(default_factory=dict)
    failure: BaseException | None = None
    late: bool = False
    silent: bool = False
    obeys: bool = True
    submitted: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    extras: list[Sequence[str]] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)

    answers: dict[str, str] = field(default_factory=dict)

    def query(self, argv: Sequence[str]) -> str:
        return next((text for words, text in self.answers.items() if words in " ".join(argv)), "")

    def add(self, name: str, state: str = "RUNNING") -> str:
        ident = str(100 + len(self.known))
        part = ComponentInfo(id=ident, offset=0, state=state, reason="", nodes=("c1",))
        self.known[ident] = JobInfo(
            id=ident,
            name=name,
            state=state,
            reason="",
            nodes=("c1",),
            start_s=None,
            end_s=None,
            components=(part,),
        )
        return ident

    def set_state(self, state: str, *idents: str) -> None:
        for ident in idents or list(self.known):
            self.known[ident] = replace(self.known[ident], state=state)

    def submit(self, script: Path, *, job_name: str, extra: Sequence[str] = ()) -> JobId:
        self.extras.append(extra)
        self.scripts.append(script.read_text())
        failure, self.failure = self.failure, None
        if failure is not None and not self.late:
            raise failure
        self.submitted.append(job_name)
        ident = self.add(job_name)
        if failure is not None:
            raise failure
        return JobId(ident)

    def test_only(self, script: Path, *, label: str | None = None) -> str:
        self.scripts.append(script.read_text())
        if self.failure:
            raise self.failure
        return f"{label} would start"

    def jobs(self, ids: Sequence[str]) -> dict[str, JobInfo]:
        self._check()
        return {ident: self.known.get(ident) or gone(ident) for ident in ids}

    def find_by_name(self, name: str, *, since_s: float | None = None) -> list[JobInfo]:
        self._check()
        return [job for job in self.known.values() if job.name == name]

    def cancel(self, ident: JobId | str, signal: str | None = None, *, batch: bool = False) -> None:
        assert isinstance(ident, JobId)
        self.cancelled.append(ident.id)
        if self.obeys:
            self.set_state("CANCELLED", ident.id)

    def _check(self) -> None:
        if self.silent:
            raise QueryFailed("squeue failed: Socket timed out", transient=True)


@dataclass
class Desk:
    """A user with a spec, a state directory and a queue."""

    directory: Path
    queue: Queue = field(default_factory=Queue)
    said: list[str] = field(default_factory=list)
    nodes: int = 2

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

    def spec(self) -> Path:
        path = self.directory / "spec.yaml"
        path.write_text(SPEC.format(nodes=self.nodes))
        return path

    def submit(self, **options: Any) -> SubmitResult:
        return submit(
            self.spec(),
            environ=self.environ,
            talk=self.said.append,
            slurm=self.queue,
            **options,
        )

    def stop(self, timeout_s: float = 5.0) -> StopResult:
        return stop(
            self.run_dir,
            timeout_s=timeout_s,
            talk=self.said.append,
            environ=self.environ,
            slurm=self.queue,
        )

    def record(self, cell: str = "c000", generation: int = 1) -> Submission:
        path = self.run_dir.generation(generation).submission(cell)
        return loads(Submission, path.read_text(), where=str(path))

    def history(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run_dir.history.read_text().splitlines()]

    def desired(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.run_dir.desired.read_text())
        return value


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def rejected() -> ExaslurmError:
    return SubmitRejected("Slurm refused c000.sbatch: Invalid qos", remedy="set 'qos'")
