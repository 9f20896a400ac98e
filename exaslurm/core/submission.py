"""What ``submit`` writes down about each job, before and after ``sbatch``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

SUBMISSION_SCHEMA: Literal["exaslurm/submission/1"] = "exaslurm/submission/1"
SUPERVISOR_SCHEMA: Literal["exaslurm/supervisor/1"] = "exaslurm/supervisor/1"
ENDPOINT_SCHEMA: Literal["exaslurm/endpoint/1"] = "exaslurm/endpoint/1"
GATEWAY_JOBS_SCHEMA: Literal["exaslurm/gateway-jobs/1"] = "exaslurm/gateway-jobs/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One attempt to start one cell. Written with state ``intent`` before ``sbatch`` runs, so
    that an ambiguous answer can be resolved by looking ``job_name`` up. ``job_id`` is the
    leader's id; with layout ``local`` it is ``local`` and ``pid``/``start_ticks`` name init.
    ``cell`` is the turn's name (see ``core.turns``). Times are Unix seconds.

    What a supervisor has seen of the job: when it started and first served in full, when it was
    told to drain, when and how it ended (Slurm's word), how often Slurm has refused it in a row.
    ``before``: the tokens of earlier attempts, newest last, whose jobs must not serve.
    ``asked_s``, ``asked_by``: when and by whom it was asked to make room for a successor.
    ``gap_s``: for how long nothing of the cell served before it did (None: something did).
    ``limited_by``: the maintenance before which it has to end, so that its time was made shorter
    while it waited."""

    schema: Literal["exaslurm/submission/1"] = SUBMISSION_SCHEMA
    deployment: str
    cell: str
    generation: int
    plan_hash: str
    token: str
    job_name: str
    state: Literal["intent", "submitted", "refused", "ambiguous", "stopped"]
    created_s: float
    job_id: str | None = None
    cluster: str | None = None
    submitted_s: float | None = None
    host: str | None = None
    pid: int | None = None
    start_ticks: int | None = None
    message: str | None = None
    started_s: float | None = None
    served_s: float | None = None
    drain_s: float | None = None
    ended_s: float | None = None
    end: str | None = None
    before: tuple[str, ...] = ()
    refusals: int = 0
    asked_s: float | None = None
    asked_by: str | None = None
    gap_s: float | None = None
    limited_by: str | None = None

    def is_elsewhere(self, here: str) -> bool:
        """Whether it runs without Slurm on another host than ``here``. It listens on the loopback
        address there: here, whoever listens at that address is anybody."""
        return self.job_id == "local" and self.host not in (None, here)


def token_of(job_name: str, deployment: str, cell: str) -> str | None:
    """The token in the name of a job that was submitted for a turn; None if the job was not given
    such a name, as one that somebody has submitted by hand."""
    match = re.fullmatch(r"exa-(.+)-([0-9a-f]{8})", job_name)
    return match[2] if match and match[1] == f"{deployment}-{cell}" else None


def why_stray(record: Submission | None, job_name: str, job_id: str) -> str | None:
    """Why a job must not serve as the turn that it was submitted for: somebody who had lost the
    deployment's lock has submitted it, or Slurm took it when nobody waited for it any more. None if
    it may, as a job may that was submitted by hand, or of a turn without a record."""
    if record is None:
        return None
    token = token_of(job_name, record.deployment, record.cell)
    if token is None:
        return None
    if token != record.token:
        now = f"job {record.job_id}" if record.job_id else f"the job named {record.job_name}"
        return f"{record.cell} was submitted again since, as {now}"
    if record.state in ("refused", "stopped"):
        return f"the submission of {record.cell} was given up ({record.state})"
    if record.job_id not in (None, job_id):
        return f"{record.cell} is job {record.job_id}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """``desired.json``: whether the owner wants the deployment to run, and as which generation."""

    run: bool
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterAddress:
    """One router that serves a deployment. ``certificate`` is the one that it shows (PEM), empty
    without HTTPS; ``job_id`` is that of the gateway's job that it runs in, empty elsewhere."""

    url: str
    host: str
    pid: int
    start_ticks: int
    started_s: float
    certificate: str = ""
    job_id: str = ""

    @property
    def base_url(self) -> str:
        """For OpenAI clients. Of a router that listens on a unix socket alone, the socket."""
        url = self.url.rstrip("/")
        return url if url.startswith("unix:") else f"{url}/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """``endpoint.json``: the current list of routers."""

    schema: Literal["exaslurm/endpoint/1"] = ENDPOINT_SCHEMA
    deployment: str
    routers: tuple[RouterAddress, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayJobs:
    """``gateway/jobs.json``: the jobs of a gateway that runs in one. All have the same name
    ``job_name``, so that Slurm runs one of them at a time; ``ids`` are those that were known to
    live when this was written. ``asked_s``: when a submission began of which it is not known
    whether it made a job (Unix seconds; None: there is none). ``refusals``: how often in a row
    Slurm has refused one, last at ``refused_s`` with ``message``."""

    schema: Literal["exaslurm/gateway-jobs/1"] = GATEWAY_JOBS_SCHEMA
    job_name: str
    wanted: int
    ids: tuple[str, ...] = ()
    asked_s: float | None = None
    refusals: int = 0
    refused_s: float = 0.0
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNotice:
    """``cells/<cell>/notice.json``: Slurm has warned the job that it will end soon."""

    signal: str
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorNotes:
    """``supervisor.json``: who looks after the deployment, and what it has to say of cells (by
    name) and of itself (``trouble``)."""

    schema: Literal["exaslurm/supervisor/1"] = SUPERVISOR_SCHEMA
    host: str
    pid: int
    start_ticks: int
    time_s: float
    cells: Mapping[str, str] = field(default_factory=dict)
    trouble: str | None = None
