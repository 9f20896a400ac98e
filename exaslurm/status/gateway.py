"""The jobs of a gateway that runs in one: which serves, which wait, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from exaslurm.core.codec import loads
from exaslurm.core.submission import GatewayJobs
from exaslurm.errors import StateError
from exaslurm.rundir import RunDir
from exaslurm.status.model import JobStatus
from exaslurm.util.files import read_text

if TYPE_CHECKING:
    from exaslurm.slurm.types import JobInfo

# Slurm's word for what a spare waits for.
_DEPENDENCY = "Dependency"


def read_gateway_jobs(run_dir: RunDir) -> GatewayJobs | None:
    """What the supervisor wrote down of them; None where the gateway runs in no job."""
    path = run_dir.gateway_jobs
    try:
        return loads(GatewayJobs, read_text(path), where=str(path)) if path.exists() else None
    except StateError:
        return None  # it is written anew


def gateway_statuses(
    book: GatewayJobs | None, known: Mapping[str, JobInfo]
) -> tuple[JobStatus, ...]:
    """The jobs that may live, in the order in which they were submitted."""
    found = []
    for ident in book.ids if book is not None else ():
        assert book is not None
        info = known.get(ident)
        job = JobStatus(id=ident, name=book.job_name, cluster=None, state="UNKNOWN")
        if info is not None and info.is_finished:
            continue
        found.append(job if info is None else _with_facts(job, info))
    return tuple(found)


def why_none(jobs: tuple[JobStatus, ...]) -> str | None:
    """Why no gateway runs though there are jobs for it; None if one does, or nothing is known."""
    if not jobs or any(job.nodes or job.state == "UNKNOWN" for job in jobs):
        return None
    first = next((job for job in jobs if job.reason != _DEPENDENCY), jobs[0])
    return f"its job {first.id} {first.explanation or 'waits in the queue'}"


def gateway_line(jobs: tuple[JobStatus, ...]) -> str | None:
    """``job 12 on c1; 13 and 14 wait for its end``; None without jobs."""
    if not jobs:
        return None
    parts = []
    for job in jobs:
        if job.nodes:
            parts.append(f"job {job.id} runs on {','.join(job.nodes)}")
        elif job.state == "UNKNOWN":
            parts.append(f"job {job.id}, of which Slurm said nothing")
        elif job.reason != _DEPENDENCY:
            parts.append(f"job {job.id} {job.explanation or 'waits in the queue'}")
    spares = [str(job.id) for job in jobs if job.reason == _DEPENDENCY and not job.nodes]
    if spares:
        parts.append(f"{', '.join(spares)} wait{'s' if len(spares) == 1 else ''} for its end")
    return "; ".join(parts)


def _with_facts(job: JobStatus, info: JobInfo) -> JobStatus:
    from exaslurm.slurm.reasons import explain

    return replace(
        job,
        state=info.state,
        reason=info.reason or None,
        explanation=explain(info.reason) if info.is_pending and info.reason else None,
        started_s=info.start_s,
        nodes=info.nodes if info.is_running else (),
    )
