"""Why a new generation does not come up. Pure, but for what it remembers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from exaslurm.core.cell import ReplicaStatus

# An engine that lives and does not answer its canary request for so long never will.
BROKEN_S = 30.0
# So often an engine ends before it is plain that it always will.
MOST_RESTARTS = 3
# As the supervisor: after this many times the limits of bring-up.
PATIENCE = 2.0
# One job may fail for other reasons, such as a bad node; the next one goes without that.
MOST_FAILED_JOBS = 2
_OWN_FAULT = frozenset({"FAILED", "OUT_OF_MEMORY"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job of either generation. ``lives``: it may not have ended. ``serves``: its cell takes
    requests now; ``came_up``: it did once. ``up_s``: how long it runs (None: it does not).
    ``leaves``: it was told to go. ``end`` is Slurm's word, ``failure`` the cell's own."""

    name: str
    cell: str
    generation: int
    lives: bool
    serves: bool = False
    came_up: bool = False
    up_s: float | None = None
    leaves: bool = False
    end: str | None = None
    failure: str | None = None
    replicas: tuple[ReplicaStatus, ...] = ()


@dataclass(slots=True)
class Troubles:
    """Looks for trouble again and again."""

    _since_s: dict[tuple[str, str], float] = field(default_factory=dict)

    def find(self, jobs: Sequence[Job], bring_up_s: float, now_s: float) -> str | None:
        """What is wrong with these jobs of the new generation, the worst first."""
        late = _late(jobs, PATIENCE * bring_up_s)
        return next(iter((*self._broken(jobs, now_s), *_failed(jobs), *late)), None)

    def _broken(self, jobs: Sequence[Job], now_s: float) -> list[str]:
        found = {
            (job.name, shard): cause
            for job in jobs
            if job.lives and not job.leaves
            for shard, cause in _causes(job.replicas)
        }
        self._since_s = {key: self._since_s.get(key, now_s) for key in found}
        return [
            f"{shard} in {job}: {found[job, shard]}"
            for (job, shard), since_s in self._since_s.items()
            if now_s - since_s >= BROKEN_S
        ]


def _causes(replicas: Sequence[ReplicaStatus]) -> Iterator[tuple[str, str]]:
    """Shards of which no replica answers as it should, and why."""
    shards: dict[str, list[ReplicaStatus]] = {}
    for replica in replicas:
        shards.setdefault(f"{replica.model}:{replica.shard}", []).append(replica)
    for shard, members in shards.items():
        causes = [_cause(replica) for replica in members]
        if all(cause is not None for cause in causes):
            yield shard, str(causes[0])


def _cause(replica: ReplicaStatus) -> str | None:
    if replica.state == "warming" and replica.cause is not None:
        return f"its first request failed: {replica.cause}"
    if replica.state != "ready" and replica.restarts >= MOST_RESTARTS:
        return f"its engine has ended {replica.restarts} times: {replica.cause or 'see its log'}"
    return None


def _failed(jobs: Sequence[Job]) -> Iterator[str]:
    ended = [job for job in jobs if not job.lives and not job.leaves]
    failed = [job for job in ended if job.failure is not None or job.end in _OWN_FAULT]
    if len(failed) >= MOST_FAILED_JOBS:
        last = failed[-1]
        yield f"{len(failed)} jobs failed, {last.name} last: {last.failure or last.end}"


def _late(jobs: Sequence[Job], limit_s: float) -> Iterator[str]:
    for job in jobs:
        if job.lives and not job.came_up and not job.leaves and (job.up_s or 0.0) > limit_s:
            yield f"{job.name} does not serve {(job.up_s or 0.0) / 60:.0f} minutes after its start"
