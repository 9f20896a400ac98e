"""What agents, controller, routers and ``status`` tell each other about a cell.

Agent -> controller: ``AgentReport``; controller -> agent: ``DesiredState``; controller ->
routers and ``status``: ``CellState``; controller -> registry file: ``CellRecord``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.checks import Check, NodeChecks
from exaslurm.core.fabric import PortFigures
from exaslurm.core.facts import NodeFacts

RECORD_SCHEMA: Literal["exaslurm/registry/1"] = "exaslurm/registry/1"
STATE_SCHEMA: Literal["exaslurm/cell/1"] = "exaslurm/cell/1"

# What an engine is doing, in order. ``healthy``: /health answers 200 on its node. ``failed``: it
# ended and waits for its restart (or, after too many, for another slot).
EnginePhase = Literal["waiting", "staging", "loading", "healthy", "failed", "stopping", "stopped"]
# What a replica is for clients. ``ready``: healthy, and a real request through the advertised
# address was answered.
ReplicaState = Literal[
    "pending", "staging", "loading", "warming", "ready", "draining", "failed", "stopped"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTimes:
    """Seconds of each phase of bring-up; None: not over yet.

    reserve: submitted -> the node's agent runs; stage: weights are there; load: engine started
    -> /health 200; warm_up: first real answer; register: published.
    """

    reserve_s: float | None = None
    stage_s: float | None = None
    load_s: float | None = None
    warm_up_s: float | None = None
    register_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """Live figures of an engine, from its /metrics. ``kv_use`` is 0..1; the tokens are counted
    since the engine's start (None: it was not looked)."""

    running: int
    waiting: int
    kv_use: float
    sleeping: bool = False
    generated_tokens: int | None = None
    prefix_queried_tokens: int | None = None
    prefix_hit_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """One engine as its agent sees it. ``pid`` and ``start_ticks`` (field 22 of
    /proc/PID/stat) together name the process. Of a replica over several nodes each agent reports
    its own part, and which start of the whole it belongs to (``attempt``). ``mem_mib`` is the
    memory that its processes hold (None: not seen yet).

    ``cpus_actual`` are the CPUs that any thread of it may run on, ``mems_actual`` the NUMA nodes
    that its memory policy binds it to (None: not seen yet); ``off_plan`` says what of that is not
    as planned."""

    replica: str
    phase: EnginePhase
    pid: int | None = None
    start_ticks: int | None = None
    port: int | None = None
    restarts: int = 0
    cause: str | None = None
    stage_s: float | None = None
    load_s: float | None = None
    max_model_len: int | None = None
    cpus_actual: tuple[int, ...] | None = None
    mems_actual: tuple[int, ...] | None = None
    off_plan: str | None = None
    load: EngineLoad | None = None
    attempt: int = 0
    mem_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNodeStatus:
    """Ray on one node. ``epoch`` counts the clusters of this cell: it grows when the head is
    rebuilt. ``seconds`` is the time from the start of ``ray start`` until the node was up."""

    state: Literal["off", "starting", "up", "failed"]
    epoch: int
    cause: str | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """Memory of one GPU of a node, used by whomever."""

    visible_id: str
    used_mib: int
    limit_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFigures:
    """Memory of a node as far as the job may use it: under the limit with least to spare.

    ``bound`` is that limit: ``node``, or the cgroup as the kernel names it. ``used_mib`` is without
    page cache that the kernel can take back at once. ``stalled_pct``: share of the last ten
    seconds in which something waited for memory (None: the kernel does not tell)."""

    used_mib: int
    limit_mib: int
    bound: str = "node"
    stalled_pct: float | None = None
    gpus: tuple[GpuMemory, ...] = ()

    @property
    def free_mib(self) -> int:
        return self.limit_mib - self.used_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReport:
    """Everything a node knows; sent whole each time. ``incarnation`` is new at each start of
    the agent, ``started_s`` the wall-clock time (Unix) when the node's init started.
    ``checking``: the node still examines itself; ``preflight``: what it found (warnings and
    failures only); ``memory``: as it was a few seconds ago (None: not known)."""

    node: str
    cell: str
    incarnation: str
    started_s: float
    facts: NodeFacts
    seen_version: int
    engines: tuple[EngineStatus, ...]
    ray: RayNodeStatus
    fabric: tuple[PortFigures, ...] = ()
    checking: bool = False
    preflight: NodeChecks | None = None
    memory: MemoryFigures | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RayTarget:
    """The Ray cluster that a node shall belong to."""

    epoch: int
    head_address: str
    gcs_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredState:
    """What a node shall run. Level-triggered: the whole of it, with a growing ``version``
    (it starts above every version that an agent reports as seen). ``kill`` names replicas that are
    not among ``engines`` and shall end at once: no request of theirs can be finished. With
    ``stop``, ``grace_s`` is how long requests in flight may take (None: the plan's drain time)."""

    version: int
    ray: RayTarget | None
    engines: tuple[ReplicaBinding, ...]
    stop: bool = False
    kill: tuple[str, ...] = ()
    grace_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """One node as the controller sees it. ``excluded``: a check failed there that the others
    passed, so that it carries nothing; ``drained``: somebody wanted that it carries nothing.
    ``checks`` are those that did not pass, ``switches`` those above it, the topmost first;
    ``engines`` counts the engines that there are, also of replicas that have left."""

    node: str
    het_group: int
    state: Literal["expected", "checking", "joined", "silent", "lost", "excluded", "drained"]
    address: str | None = None
    last_report_age_s: float | None = None
    ray: RayNodeStatus | None = None
    cause: str | None = None
    fabric: tuple[PortFigures, ...] = ()
    checks: tuple[Check, ...] = ()
    switches: tuple[str, ...] = ()
    memory: MemoryFigures | None = None
    engines: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """One replica as the controller sees it. ``nodes`` are all nodes of a replica over several,
    ``node`` is the one that answers; cores, GPUs and process are that one's. ``parts`` say the
    same of each of its nodes (empty for a replica on one).

    ``cores``, ``mem_nodes``, ``gpus`` and ``hca`` are what was planned; ``..._granted`` what Slurm
    granted to the step on that node, for all replicas there; ``..._actual`` what the processes have
    (None: not seen yet). ``remark`` says what of the plan is not as near as it should be,
    ``off_plan`` what of the processes is not as planned. ``version`` is that of its model, see
    ``core.versions``."""

    id: str
    model: str
    shard: str
    served_names: tuple[str, ...]
    state: ReplicaState
    node: str
    url: str
    restarts: int = 0
    cause: str | None = None
    phases: PhaseTimes = field(default_factory=PhaseTimes)
    max_model_len: int | None = None
    load: EngineLoad | None = None
    cores: tuple[int, ...] = ()
    cores_actual: tuple[int, ...] | None = None
    gpus: tuple[str, ...] = ()
    pid: int | None = None
    simulated: bool = False
    nodes: tuple[str, ...] = ()
    pinned: bool = False
    cores_granted: tuple[int, ...] = ()
    gpus_granted: tuple[str, ...] = ()
    mem_nodes: tuple[int, ...] = ()
    mem_nodes_actual: tuple[int, ...] | None = None
    hca: str | None = None
    remark: str | None = None
    off_plan: str | None = None
    version: str = ""
    parts: tuple[ReplicaStatus, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RayCellState:
    """The cell's Ray. ``seconds``: first ``ray start`` -> all nodes alive."""

    state: Literal["off", "starting", "complete", "partial", "failed"]
    epoch: int = 0
    nodes_alive: int = 0
    nodes_wanted: int = 0
    address: str | None = None
    cause: str | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellState:
    """The answer to ``GET /v1/state`` of a cell's controller. ``phase`` is the cell's own:
    nodes -> ray -> engines -> serving; ``cause`` is the first cause of what is wrong. ``targets``:
    how many replicas of a shard (``model:shard``) it was told to run (None: all that are planned).
    """

    schema: Literal["exaslurm/cell/1"] = STATE_SCHEMA
    deployment: str
    cell: str
    plan_hash: str
    job_id: str
    seq: int
    phase: Literal["nodes", "ray", "engines", "serving", "degraded", "stopping", "failed"]
    cause: str | None
    nodes: tuple[NodeState, ...]
    ray: RayCellState
    replicas: tuple[ReplicaStatus, ...]
    notes: tuple[str, ...] = ()
    targets: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRecord:
    """What a router must know of a replica to use it. ``version``: see ``core.versions``."""

    id: str
    model: str
    shard: str
    served_names: tuple[str, ...]
    url: str
    node: str
    ready: bool
    max_model_len: int | None = None
    weight: float = 1.0
    priority: int = 0
    simulated: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRecord:
    """``registry/<cell>.json``: the full last replica list of a cell.

    ``seq`` grows with every write; the age of the lease is the reader's own monotonic time since
    it last changed. ``state_url`` is the controller's base address. An expired lease never
    removes a replica that answers.
    """

    schema: Literal["exaslurm/registry/1"] = RECORD_SCHEMA
    deployment: str
    cell: str
    generation: int
    plan_hash: str
    job_id: str
    seq: int
    lease_s: float
    state_url: str
    replicas: tuple[ReplicaRecord, ...]
