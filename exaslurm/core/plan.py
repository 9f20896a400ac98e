"""The plan: everything that is decided on the login node, as frozen data.

A plan says how many nodes of which kind, how many replicas of what, and what one replica needs.
It does not name nodes, GPUs or ports: those are facts of an allocation (see ``binding``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from exaslurm.core.codec import content_hash, from_jsonable, to_jsonable
from exaslurm.core.container import ContainerPlan
from exaslurm.core.fabric import FabricPlan
from exaslurm.core.limits import Limits
from exaslurm.core.spread import Survival
from exaslurm.core.turns import cell_of

PLAN_SCHEMA: Literal["exaslurm/plan/1"] = "exaslurm/plan/1"

Layout = Literal["het", "single", "local"]
Role = Literal["head", "worker", "both"]
EngineKind = Literal["vllm", "simulated"]
Device = Literal["cpu", "cuda", "rocm", "xpu"]
SourceKind = Literal["path", "hf", "package", "none"]
GatewayHome = Literal["login", "service", "job"]
RouterPolicy = Literal["affinity", "power_of_two"]
# How the processes of an engine over several nodes find each other: vLLM's own multi-node mode, or
# its Ray executor (GPUs only).
Executor = Literal["mp", "ray"]
Option = str | int | float | bool

# In place of an address to listen on: that of the node, as the site's nodes reach each other.
NODE_ADDRESS = "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTemplate:
    """What one replica gets on its node (for a multi-node replica: on each of its nodes)."""

    gpus: int
    cores: int
    mem_gib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """Where the weights come from. ``value`` is a path, a hub id or a distribution's name."""

    kind: SourceKind
    value: str
    revision: str | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """How the engine of a model is started.

    ``args`` are engine options by long name without dashes (``max-model-len: 2048``);
    ``extra_args`` are passed as they are; ``env`` is added to the engine's environment.
    """

    kind: EngineKind
    device: Device
    args: Mapping[str, Option | None] = field(default_factory=dict)
    extra_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlan:
    """One served variant of a model. The first of ``served_names`` is its own name."""

    name: str
    served_names: tuple[str, ...]
    lora: str | None = None
    priority: int = 0
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """One model: where from, by which engine, in which shards, with what per replica.

    A replica of ``tensor`` x ``pipeline`` ranks runs on ``nodes`` nodes, the same number of ranks
    on each, in the order in which vLLM counts them: the ranks of a tensor-parallel group follow
    each other. ``slot`` is what it takes on each of its nodes. ``constraints`` are conditions
    that each of them must meet (see ``core.constraints``).
    """

    name: str
    source: ModelSource
    engine: EnginePlan
    tensor: int
    pipeline: int
    slot: SlotTemplate
    max_replicas_per_node: int
    shards: tuple[ShardPlan, ...]
    nodes: int = 1
    executor: Executor = "mp"
    constraints: tuple[str, ...] = ()

    @property
    def ranks_per_node(self) -> int:
        """Workers of one replica on each of its nodes."""
        return self.tensor * self.pipeline // self.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSet:
    """How many replicas of one shard a cell holds. So many of them at least go ``apart``, to
    different nodes, before others take the room (None: as many as ``Survival`` asks for)."""

    model: str
    shard: str
    count: int
    apart: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentPlan:
    """One component of the job: nodes of one kind.

    ``directives`` are the ``#SBATCH`` options in order, by long name without dashes, with
    ``None`` for an option without a value. ``cpus_per_node``, ``mem_mib_per_node`` (None: not
    asked for) and ``gpus_per_node`` are what was asked of Slurm for each node; ``kind_gpus`` and
    ``kind_cores`` are what a node of the kind has for replicas (None: not known), and
    ``reserved_cpus`` what the site keeps to itself of each.
    """

    het_group: int
    role: Role
    kind: str
    nodes: int
    min_nodes: int
    cpus_per_node: int
    mem_mib_per_node: int | None
    gpus_per_node: int
    directives: tuple[tuple[str, str | None], ...]
    kind_gpus: int | None = None
    kind_cores: int | None = None
    reserved_cpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPlan:
    """One cell: one Slurm job (or, with layout ``local``, one process tree)."""

    name: str
    index: int
    components: tuple[ComponentPlan, ...]
    replica_sets: tuple[ReplicaSet, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PortPolicy:
    """Ports ``first`` to ``last`` (inclusive) in blocks of ``block``."""

    first: int = 20000
    last: int = 31999
    block: int = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class RayPlan:
    """Whether a cell brings up Ray, and how long bring-up waits for it before going on."""

    enabled: bool
    start_timeout_s: float
    object_store_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutPlan:
    """Deadlines. ``nodes_s``: all nodes have reported. ``ready_s``: one replica is ready after
    its start. ``drain_s``: requests in flight may finish when a replica is stopped. A replica that
    served is started again when its engine's /health is silent for ``hung_s``, or when the engine
    has requests and makes no token for ``stall_s``."""

    nodes_s: float
    stage_s: float
    ready_s: float
    drain_s: float
    hung_s: float = 60.0
    stall_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnvironment:
    """What the site says about its nodes.

    ``interface`` is a network interface or a shell-style pattern (``hsn*``), ``loopback``, or
    None for the address that the node's own host name resolves to. ``host_suffix`` is added to
    the host name before it is resolved. ``tmp`` must be short: Ray's socket paths are limited to
    107 bytes. With a ``container``, ``python`` is the one inside it. ``modules`` and ``prologue``
    are for the batch script; what they set reaches the nodes through srun.
    """

    python: str
    tmp: str
    shared: str
    local: str | None
    interface: str | None
    host_suffix: str
    env: Mapping[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    prologue: tuple[str, ...] = ()
    fabric: FabricPlan = field(default_factory=FabricPlan)
    container: ContainerPlan | None = None

    @property
    def host_python(self) -> str:
        """The Python of the batch script, which runs outside of any container."""
        return self.python if self.container is None else self.container.host_python


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsPlan:
    """Files for HTTPS (PEM): certificate chain and private key, absolute."""

    cert: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayJobPlan:
    """The jobs of a gateway that runs in one: one of them serves, ``spares`` wait for its end.
    ``component`` is what each asks for."""

    component: ComponentPlan
    spares: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayPlan:
    """Where the router runs and listens (``bind`` of NODE_ADDRESS: where other nodes reach it).
    ``port`` 0 means: the first free one of the site. ``workers`` processes serve on it.
    ``audit_gib`` bounds the audit log, if there is one. ``policy`` says how a replica is chosen;
    without an answer for ``hedge_after_s`` a second one is asked too (None: never). ``job``: what
    it runs in, where that is a job."""

    home: GatewayHome
    bind: str
    port: int
    start_with_submit: bool
    workers: int = 1
    tls: TlsPlan | None = None
    limits: Limits = field(default_factory=Limits)
    audit: bool = True
    audit_gib: float = 10.0
    policy: RouterPolicy = "affinity"
    hedge_after_s: float | None = None
    job: GatewayJobPlan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardScale:
    """How many replicas of a shard there may be, over all cells. ``start``: at the beginning;
    ``least``: while somebody uses it. ``capacity``: requests that one replica works on at a time.
    ``ttft_p95_s``: what clients are promised (None: nothing)."""

    start: int
    least: int
    most: int
    capacity: int
    ttft_p95_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalePlan:
    """When replicas come and go. ``shards`` by ``model:shard``; ``least_per_model``: of all shards
    of a model that somebody uses together. ``idle_s``: after so long without a request a shard has
    no replica (None: never). For the rest see ``autoscale/policy.py``."""

    shards: Mapping[str, ShardScale]
    up_at: float
    down_at: float
    cooldown_s: float
    least_per_model: int = 1
    idle_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole deployment. ``hash`` is the content hash of everything else. ``switches`` are the
    site's, where it names them: switch to the nodes or switches below it, as a hostlist. ``spread``
    and ``notes`` are sentences for the user: which losses every shard outlives; where a default
    came from, what of the spec has no effect. ``weak`` are the shards (``model:shard``) that the
    loss of so many nodes may end, though ``survival`` says that it should not."""

    schema: Literal["exaslurm/plan/1"] = PLAN_SCHEMA
    hash: str = ""
    deployment: str
    site: str
    layout: Layout
    models: tuple[ModelPlan, ...]
    cells: tuple[CellPlan, ...]
    node: NodeEnvironment
    ports: PortPolicy
    ray: RayPlan
    timeouts: TimeoutPlan
    gateway: GatewayPlan
    srun_args: tuple[str, ...] = ()
    poll_floor_s: float = 10.0
    survival: Survival = field(default_factory=Survival)
    switches: Mapping[str, str] = field(default_factory=dict)
    spread: tuple[str, ...] = ()
    weak: Mapping[str, int] = field(default_factory=dict)
    autoscale: AutoscalePlan | None = None
    notes: tuple[str, ...] = ()

    def sealed(self) -> Plan:
        """The same plan with ``hash`` set.

        It goes through its own JSON first: an ``int`` given for a ``float`` would come back from
        ``plan.json`` as another text, and with another hash.
        """
        bare = from_jsonable(
            Plan, to_jsonable(dataclasses.replace(self, hash="")), where="the plan"
        )
        return dataclasses.replace(bare, hash=content_hash(bare))

    def is_sealed(self) -> bool:
        """Whether ``hash`` fits the content."""
        return self.hash == content_hash(dataclasses.replace(self, hash=""))

    def cell(self, name: str) -> CellPlan:
        """The cell of that name, or of one of its turns, under that name; KeyError if there is
        none."""
        for cell in self.cells:
            if cell.name == cell_of(name):
                return cell if cell.name == name else dataclasses.replace(cell, name=name)
        raise KeyError(name)

    def model(self, name: str) -> ModelPlan:
        """The model of that name; KeyError if there is none."""
        for model in self.models:
            if model.name == name:
                return model
        raise KeyError(name)
