"""What ``status`` knows, as frozen data (``exaslurm status --json`` prints it)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from exaslurm.core.cell import NodeState, RayCellState, ReplicaStatus
from exaslurm.core.submission import RouterAddress

STATUS_SCHEMA: Literal["exaslurm/status/1"] = "exaslurm/status/1"

# queued: a job waits in Slurm; nodes, ray, engines: what bring-up waits for; ready: every planned
# replica serves; degraded: some serve; failed: none serves and none will without help; ended: the
# job is over; unknown: neither Slurm nor a controller answered.
Phase = Literal[
    "unsubmitted",
    "queued",
    "nodes",
    "ray",
    "engines",
    "ready",
    "degraded",
    "stopping",
    "stopped",
    "ended",
    "failed",
    "unknown",
]
# Where the figures of a cell come from: its controller (live), its last registry record, or only
# what submit wrote down.
Source = Literal["controller", "registry", "submission"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """The Slurm job of a cell (layout ``local``: its init process). ``state`` is Slurm's word,
    or ``UNKNOWN`` if Slurm gave no answer: that is not ``ended``. ``explanation`` says the reason
    in words that follow "job 93 ...". Times are Unix seconds."""

    id: str | None
    name: str
    cluster: str | None
    state: str
    reason: str | None = None
    explanation: str | None = None
    submitted_s: float | None = None
    started_s: float | None = None
    ended_s: float | None = None
    exit_code: int | None = None
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CellStatus:
    """One job of a cell, of this ``generation``. ``replicas_planned`` counts the plan's,
    ``replicas`` are those that are known."""

    name: str
    phase: Phase
    source: Source
    cause: str | None
    remedy: str | None
    job: JobStatus | None
    nodes_planned: int
    nodes_joined: int
    replicas_planned: int
    replicas_ready: int
    nodes: tuple[NodeState, ...] = ()
    ray: RayCellState | None = None
    replicas: tuple[ReplicaStatus, ...] = ()
    notes: tuple[str, ...] = ()
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStatus:
    """The change to another generation that is under way, or the last one that was taken back.
    ``sentence`` says where it stands, ``figures`` what was counted in its step, by served name;
    ``silent``: routers that gave no answer, so that their requests are not among them."""

    stable: int
    candidate: int
    state: str
    step: int
    steps_percent: tuple[float, ...]
    share_percent: float
    sentence: str
    reason: str | None = None
    figures: Mapping[str, str] = field(default_factory=dict)
    silent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentStatus:
    """A deployment at one moment. ``routers`` are those whose process is alive, as far as this
    host can tell; ``base_url`` is what an OpenAI client takes. ``slurm_error`` says why Slurm
    could not be asked, ``spread`` which losses every shard outlives, ``notes`` what was found out
    when it was submitted; ``gateway_jobs`` are those of a gateway that runs in one."""

    schema: Literal["exaslurm/status/1"] = STATUS_SCHEMA
    deployment: str
    generation: int
    plan_hash: str
    site: str
    layout: str
    run_dir: str
    phase: Phase
    cause: str | None
    remedy: str | None
    run_wanted: bool
    replicas_planned: int
    replicas_ready: int
    base_url: str | None
    routers: tuple[RouterAddress, ...]
    cells: tuple[CellStatus, ...]
    slurm_error: str | None
    collected_s: float
    simulated: bool = False
    spread: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    rollout: RolloutStatus | None = None
    gateway_jobs: tuple[JobStatus, ...] = ()

    @property
    def is_ready(self) -> bool:
        """Every planned replica serves."""
        return self.phase == "ready"

    @property
    def has_all_replicas(self) -> bool:
        """Whether every planned replica is ready, reached by clients or not."""
        return self.replicas_ready >= self.replicas_planned

    @property
    def is_over(self) -> bool:
        """Nothing more will happen without the user."""
        return self.phase in ("stopped", "ended", "failed", "unsubmitted")
