"""From facts to a phase and the first cause of what is wrong, in a sentence. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exaslurm.core.cell import CellState, NodeState, ReplicaStatus
from exaslurm.core.submission import Submission
from exaslurm.core.turns import cell_of
from exaslurm.slurm import states
from exaslurm.status.model import CellStatus, JobStatus, Phase
from exaslurm.status.routers import RouterView

# What a local cell's init process is once it is gone, and a job that `stop` saw the end of: there
# Slurm is not asked.
LOCAL_ENDED = "ENDED"
ENDED = states.FINISHED | {LOCAL_ENDED}
_WHY_ENDED = {
    "COMPLETED": "ended by itself",
    "CANCELLED": "was cancelled",
    "FAILED": "failed",
    "TIMEOUT": "reached its time limit",
    "NODE_FAIL": "lost a node",
    "PREEMPTED": "was preempted",
    "OUT_OF_MEMORY": "ran out of memory",
    "BOOT_FAIL": "could not start: a node failed to boot",
    "DEADLINE": "reached its deadline",
    "REVOKED": "was moved to another cluster",
    states.GONE: "ended some time ago",
    LOCAL_ENDED: "is not running any more",
}
# Where the end of the batch log tells nothing that the state does not.
_SAYS_IT_ALL = frozenset(
    {"CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE"}
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A phase, and why it is not (yet) a better one."""

    phase: Phase
    cause: str | None = None
    remedy: str | None = None


def judge_submission(submission: Submission | None, deployment: str) -> Finding | None:
    """What the record of the submission alone decides; None: ask further."""
    if submission is None:
        return Finding(
            "unsubmitted",
            "the cell was not submitted",
            f"exaslurm submit (deployment {deployment})",
        )
    if submission.state == "refused":
        # The message says who refused it: Slurm, or on one machine the system.
        return Finding(
            "failed", f"it was not started: {submission.message or 'no reason is known'}"
        )
    if submission.state == "stopped":
        return Finding("stopped")
    if submission.state in ("intent", "ambiguous") and submission.job_id is None:
        return Finding(
            "unknown",
            f"it is not known whether Slurm took the job {submission.job_name}",
            f"squeue --name {submission.job_name}; submitting again looks the name up first",
        )
    return None


def judge_job(
    job: JobStatus, *, run_wanted: bool, failure: str | None = None, log_tail: str | None = None
) -> Finding | None:
    """What the state of the job alone decides; None: the job runs, or its state is unknown.

    ``failure`` is why the cell ended itself, ``log_tail`` the last line of its batch log.
    """
    name = f"job {job.id}" if job.id and job.id != "local" else "the cell's init process"
    if job.state in ENDED:
        if not run_wanted:
            return Finding("stopped")
        why = _WHY_ENDED.get(job.state, f"ended as {job.state}")
        text = f"{name} {why}"
        if job.exit_code:
            text += f" (exit code {job.exit_code})"
        if job.state not in _SAYS_IT_ALL and (failure or log_tail):
            text += f": {failure}" if failure else f"; the last words of its logs: {log_tail}"
        again = "a supervisor submits the next one: exaslurm supervise, where no gateway runs"
        if job.id == "local":
            again = "exaslurm stop, then exaslurm submit, starts it again"
        return Finding("ended", text, again)
    if job.state in states.PENDING:
        return Finding("queued", f"{name} {job.explanation or 'waits in the queue'}")
    return None


def judge_state(state: CellState, *, planned: int) -> Finding:
    """Phase and first cause of a cell whose controller answers."""
    ready = sum(replica.state == "ready" for replica in state.replicas)
    cause = state.cause or first_node_cause(state.nodes) or first_replica_cause(state.replicas)
    match state.phase:
        case "nodes" | "ray" | "engines":
            if 0 < ready == planned:
                return _ready_or_off_plan(state.replicas)
            return Finding(state.phase, cause)
        case "serving" | "degraded":
            if ready >= planned > 0:
                return _ready_or_off_plan(state.replicas)
            missing = f"{ready} of {planned} replicas are ready"
            return Finding("degraded", cause or missing)
        case "stopping":
            return Finding("stopping", cause)
        case "failed":
            return Finding("failed", cause or "the cell failed")


def _ready_or_off_plan(replicas: Sequence[ReplicaStatus]) -> Finding:
    """Ready, and what is wrong all the same: processes that run elsewhere than planned take cores
    or memory from others."""
    for replica in replicas:
        if replica.off_plan is not None:
            return Finding(
                "ready",
                f"replica {replica.id} on {replica.node} is not where it was planned to be: "
                f"{replica.off_plan}",
                "find out who changed it (taskset, numactl, an engine option such as --numa-bind); "
                "a restarted engine is pinned again",
            )
    return Finding("ready")


def judge_records(ready: int, planned: int, *, known: bool) -> Finding:
    """Phase of a running cell whose controller gives no answer: what its record last said."""
    if not known:
        return Finding("nodes", "the cell's head has not reported yet")
    if ready == planned:
        return Finding("ready")
    return Finding(
        "degraded" if ready else "engines",
        f"{ready} of {planned} replicas were ready when the controller last wrote; "
        "it gives no answer now",
    )


def judge_routers(
    views: Sequence[RouterView],
    planned: int,
    deployment: str,
    *,
    listed: int,
    error: str | None = None,
) -> Finding:
    """Phase of a deployment whose replicas are all ready: do clients reach them?

    ``listed`` routers may be alive; ``views`` are of those that can be asked from here. Those
    that cannot (loopback of another host) are taken at their word. ``error``: what the last one
    ended with.
    """
    known = [view.replicas for view in views if view.replicas is not None]
    if listed and not views:
        return Finding("ready")
    if not views:
        return Finding(
            "degraded",
            f"every replica is ready, but no router runs{f': {error}' if error else ''}",
            f"exaslurm logs {deployment} --router; exaslurm gateway {deployment} starts one",
        )
    if not known:
        return Finding(
            "degraded",
            f"every replica is ready, but the router at {views[0].url} gives no answer",
            f"exaslurm logs {deployment} --router",
        )
    if max(known) < planned:
        return Finding("engines", f"the router knows {max(known)} of {planned} replicas so far")
    return Finding("ready")


def first_node_cause(nodes: Sequence[NodeState]) -> str | None:
    """The first node with something wrong."""
    for node in nodes:
        if node.state in ("silent", "lost"):
            return f"node {node.node} {node.cause or f'is {node.state}'}"
        if node.ray is not None and node.ray.state == "failed":
            return f"node {node.node}: Ray failed: {node.ray.cause or 'no cause known'}"
    return None


def first_replica_cause(replicas: Sequence[ReplicaStatus]) -> str | None:
    """The first replica with a stated cause; those that failed come first."""
    for replica in sorted(replicas, key=lambda item: item.state != "failed"):
        if replica.cause and replica.state != "ready":
            return f"replica {replica.id} on {replica.node}: {replica.cause}"
    return None


# Which cell's word is the deployment's, worst first.
_ORDER: tuple[Phase, ...] = (
    "failed",
    "ended",
    "unknown",
    "stopping",
    "degraded",
    "nodes",
    "ray",
    "engines",
    "queued",
    "unsubmitted",
    "stopped",
    "ready",
)


def speakers(cells: Sequence[CellStatus]) -> list[CellStatus]:
    """Of each cell the turn whose word counts: the best one, and of equal ones the newest."""
    best: dict[str, CellStatus] = {}
    for cell in cells:
        before = best.get(cell_of(cell.name))
        if before is None or _ORDER.index(cell.phase) >= _ORDER.index(before.phase):
            best[cell_of(cell.name)] = cell
    return list(best.values())


def combine(cells: Sequence[CellStatus]) -> Finding:
    """One phase and first cause for the deployment: the worst cell's, and ``degraded`` where
    some cells serve and others do not."""
    if not cells:
        return Finding("unsubmitted", "nothing was submitted")
    worst = min(cells, key=lambda cell: _ORDER.index(cell.phase))
    cause = worst.cause
    if cause is not None and len(cells) > 1:
        cause = f"cell {worst.name}: {cause}"
    serving = sum(cell.replicas_ready for cell in cells)
    if worst.phase in ("failed", "ended", "unknown") and serving:
        return Finding("degraded", cause, worst.remedy)
    return Finding(worst.phase, cause, worst.remedy)
