"""The cluster spec, version 1: every key, its type, its default and what it means."""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Strict, model_validator
from pydantic.config import JsonDict

from exaslurm.core import limits
from exaslurm.core.rollout import RolloutPolicy
from exaslurm.util.fields import (
    MOST,
    ONE_OR_LIST,
    TEXT,
    AnyText,
    Count,
    Directive,
    DirectiveName,
    EnvName,
    Flag,
    Name,
    Natural,
    NodeCount,
    PathText,
    Positive,
    ReplicaCount,
    Root,
    Section,
    Share,
    Switches,
    Text,
    TimeLimit,
    Whole,
    Word,
    bad,
    directive_pair,
)

# Options of the engine that follow from the plan; a second opinion could only contradict it.
_OWNED_ARGS = {
    "api-key": "clients' keys are made with `exaslurm key add`",
    "host": "the site names the interface",
    "middleware": "the key check of the deployment is put there",
    "model": "use models[].source",
    "pipeline-parallel-size": "use models[].parallel.pipeline",
    "port": "ports come from the site's blocks",
    "served-model-name": "use models[].name and models[].shards[].name",
    "tensor-parallel-size": "use models[].parallel.tensor",
    "uds": "engines listen on the site's interface",
}
# Options that name the job, decide where its output goes, or are no batch options at all.
_OWNED_DIRECTIVES = ("array", "error", "help", "hetjob", "input", "job-name", "nodes", "ntasks",
                     "ntasks-per-node", "open-mode", "output", "parsable", "test-only", "usage",
                     "version", "wait", "wrap")  # fmt: skip
_NOT_YET: JsonDict = {"x-not-yet": True}
_LIMITS = limits.Limits()
_ROLLOUT = RolloutPolicy()


def _argument(value: str) -> str:
    name = value.replace("_", "-")
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
        raise bad("use the option's long name without dashes in front, such as max-model-len")
    if name in _OWNED_ARGS:
        raise bad(f"set by exaslurm: {_OWNED_ARGS[name]}")
    return name


def _extra_argument(value: str) -> str:
    name = value.removeprefix("--").partition("=")[0].replace("_", "-")
    if value.startswith("--") and name in _OWNED_ARGS:
        raise bad(f"--{name} is set by exaslurm: {_OWNED_ARGS[name]}")
    if "\0" in value:
        raise bad("must not hold a NUL character")
    return value


def _engine_variable(value: str) -> str:
    if value.startswith("EXASLURM_"):
        raise bad("EXASLURM_* is for exaslurm itself")
    return value


def _free_directive(value: str) -> str:
    name = directive_pair(value)[0]
    if name in _OWNED_DIRECTIVES:
        raise bad(f"--{name} is set by exaslurm, or makes no sense in a batch script of its own")
    return value


def _single(value: object) -> object:
    if isinstance(value, dict | list):
        raise bad("must be text, a number, true, false or empty")
    if isinstance(value, float) and not math.isfinite(value):
        raise bad("must be a finite number (in quotes it is text)")
    return value


ArgumentName = Annotated[str, AfterValidator(_argument)]
EngineVariable = Annotated[EnvName, AfterValidator(_engine_variable)]
ExtraArgument = Annotated[str, TEXT, AfterValidator(_extra_argument)]
Option = Annotated[str | int | float | bool | None, BeforeValidator(_single)]
FreeDirective = Annotated[Directive, AfterValidator(_free_directive)]


class Source(Section):
    """Where the weights come from: exactly one of path, hf and package."""

    path: Text | None = Field(
        default=None,
        description="Directory in the format of the Hugging Face hub. A relative one is taken "
        "from the directory of the spec; ~, $HOME and $USER are understood.",
    )
    hf: Annotated[Text, Field(pattern=r"^[\w.-]+(/[\w.-]+)?$")] | None = Field(
        default=None, description="Name on the Hugging Face hub, such as org/model."
    )
    package: Annotated[Text, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] | None = Field(
        default=None, description="Python distribution that carries the model."
    )
    revision: Word | None = Field(default=None, description="Hub revision or package version.")
    sha256: Annotated[str, TEXT, Field(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        default=None, description="SHA-256 that the staged weights must have (64 hex digits)."
    )

    @model_validator(mode="after")
    def _one(self) -> Source:
        given = [key for key in ("path", "hf", "package") if getattr(self, key)]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise bad(f"give exactly one of path, hf and package; found {found}")
        return self


class Engine(Section):
    """How the model is run."""

    kind: Literal["vllm", "simulated"] = Field(
        default="vllm",
        description="vllm serves the model; simulated speaks the same HTTP with a stated timing "
        "model and says so in its answers: for planning, scale and fault tests.",
    )
    device: Literal["cpu", "cuda", "rocm", "xpu"] | None = Field(
        default=None, description="Default: what the site says of the workers' node kind."
    )
    args: dict[ArgumentName, Option] = Field(
        default_factory=dict,
        description="Engine options by long name without dashes, such as max-model-len: 2048; "
        "true for a switch, empty for an option without a value.",
    )
    extra_args: tuple[ExtraArgument, ...] = Field(
        default=(), description="Words added to the engine's command line as they are."
    )
    env: dict[EngineVariable, AnyText] = Field(
        default_factory=dict, description="Added to the engine's environment. No secrets here."
    )


class Parallel(Section):
    """How one replica is split."""

    tensor: Count = Field(
        default=1, description="Tensor-parallel size: GPUs that share each layer, on one node."
    )
    pipeline: Count = Field(
        default=1, description="Pipeline-parallel size: groups of layers, which may lie on nodes."
    )
    nodes: Count | None = Field(
        default=None,
        description="Nodes of one replica. Default: one, or as few as have a GPU for each rank "
        "and hold whole tensor-parallel groups.",
    )
    executor: Literal["mp", "ray"] = Field(
        default="mp",
        description="How the processes of a replica over several nodes are run: vLLM's own way, "
        "or its Ray executor (GPUs only).",
    )


class PerReplica(Section):
    """What one replica gets on its node; one over several nodes gets it on each."""

    gpus: Natural | None = Field(
        default=None,
        description="Default: one for each rank that the node holds (tensor x pipeline on one "
        "node), or 0 with device cpu and kind simulated.",
    )
    cores: Count | None = Field(
        default=None,
        description="Logical CPUs. Default: what the site says, else an equal share of the node.",
    )
    mem_gib: Positive | None = Field(
        default=None,
        description="Host memory in GiB. Default: what the site says, else an equal share.",
    )


class Shard(Section):
    """One served variant of a model, addressed by one name."""

    name: Name = Field(description="Clients say MODEL:SHARD; the first shard is MODEL too.")
    replicas: ReplicaCount = Field(
        default=1,
        description="Engines that serve it, over all cells; with autoscale, at the beginning.",
    )
    lora: Text | None = Field(default=None, description="Directory of a LoRA adapter.")
    intents: tuple[Name, ...] = Field(
        default=(), description="Intents routed to this shard.", json_schema_extra=_NOT_YET
    )
    min: Natural | None = Field(
        default=None, description="Replicas at least. Default: autoscale.min."
    )
    max: ReplicaCount | None = Field(
        default=None, description="Replicas at most. Default: autoscale.max."
    )
    priority: Whole = Field(
        default=0, description="Higher is kept longer when something must give way."
    )
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=1.0, description="Share of requests relative to other shards of the same name."
    )


class Slo(Section):
    """What clients are promised."""

    ttft_p95_s: Positive | None = Field(
        default=None,
        description="First token of a streamed answer, 95th percentile, seconds; with autoscale, "
        "more replicas are started when it comes later.",
    )
    e2e_p99_s: Positive | None = Field(
        default=None,
        description="Whole answer, 99th percentile, seconds.",
        json_schema_extra=_NOT_YET,
    )


def _distinct(what: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise bad(f"two {what} are named {name}")


def _distinct_shards(shards: tuple[Shard, ...]) -> tuple[Shard, ...]:
    _distinct("shards", [shard.name for shard in shards])
    return shards


class Model(Section):
    """One model: where from, by which engine, in which shards, with what per replica."""

    name: Name = Field(description="The name that clients use.")
    source: Source | None = Field(
        default=None,
        description="Where the weights come from. Not needed with engine kind simulated.",
    )
    engine: Engine = Field(default=Engine(), description="How the model is run.")
    parallel: Parallel = Field(default=Parallel(), description="How one replica is split.")
    per_replica: PerReplica = Field(default=PerReplica(), description="What one replica gets.")
    max_replicas_per_node: Count = Field(default=16, description="At most so many on one node.")
    shards: Annotated[tuple[Shard, ...], AfterValidator(_distinct_shards)] = Field(
        default=(Shard(name="base"),), min_length=1, description="Served variants of the model."
    )
    constraints: tuple[Text, ...] = Field(
        default=(),
        description="Conditions that every node of a replica must meet, such as 'ib_gbps >= 200'; "
        "see the how-to on constraints.",
    )
    slo: Slo | None = Field(default=None, description="What clients are promised.")

    @model_validator(mode="after")
    def _has_source(self) -> Model:
        if self.source is None and self.engine.kind != "simulated":
            raise bad("source is required with engine kind vllm: one of path, hf and package")
        return self


class Workers(Section):
    """Nodes of one kind that carry replicas."""

    kind: Name | None = Field(
        default=None, description="Node kind of the site. Default: the site's."
    )
    nodes: NodeCount = Field(default=1, description="Nodes of this kind, over all cells.")
    nodes_per_cell: NodeCount | None = Field(
        default=None,
        description="At most so many in one cell. Default: the site's, else all of them.",
    )
    min_nodes: NodeCount | None = Field(
        default=None,
        description="A cell serves with its share of so many nodes. Default: all of them.",
    )
    switches: Switches | None = Field(
        default=None, description="At most so many leaf switches per cell, as sbatch --switches."
    )


class Head(Section):
    """The node that carries the cell's controller and the Ray head."""

    kind: Name | None = Field(
        default=None, description="Node kind of the site. Default: the site's."
    )
    cpus: Count | None = Field(
        default=None, description="Logical CPUs asked for. Default: the site's."
    )
    mem_gib: Positive | None = Field(
        default=None, description="Memory in GiB. Default: the site's."
    )


class Tls(Section):
    """Files for HTTPS on the gateway. They are read again when they change."""

    cert: PathText = Field(description="Certificate chain (PEM).")
    key: PathText = Field(description="Private key (PEM), readable by its owner only.")


class Limits(Section):
    """What a router takes on, its workers together. The limits of a key: `exaslurm key`."""

    max_in_flight: Count = Field(
        default=_LIMITS.max_in_flight,
        description="Requests at engines at a time, over all clients; the others wait.",
    )
    max_in_flight_per_replica: Count | None = Field(
        default=None,
        description="Requests of a shard at its engines at a time, for each of its usable "
        "replicas. Default: no limit, engines have queues of their own.",
    )
    max_waiting: Natural = Field(
        default=_LIMITS.max_waiting,
        description="Requests that wait for their turn; more are refused (503).",
    )
    max_waiting_per_key: Count | None = Field(
        default=None,
        description="Of these, requests of one key; more are refused (429). Default: half of "
        "what others have left free.",
    )
    wait_s: Positive = Field(
        default=_LIMITS.wait_s, description="Seconds that a request waits; then it is refused."
    )
    wake_s: Positive = Field(
        default=_LIMITS.wake_s,
        description="Seconds that a request waits for a model that was scaled to zero to come up.",
    )
    max_body_mib: Positive = Field(
        default=_LIMITS.max_body_mib, description="Size of a request's body in MiB."
    )
    direct_s: Annotated[
        float, Strict(), Field(ge=0, le=limits.MOST_DIRECT_S, allow_inf_nan=False)
    ] = Field(
        default=_LIMITS.direct_s,
        description="Longest life in seconds of a token with which a client calls an engine "
        "itself; 0: there are none.",
    )


class Gateway(Section):
    """The address that clients use."""

    home: Literal["login", "service", "job"] | None = Field(
        default=None,
        description="login: a process on the login node; service: a host of its own, where "
        "`exaslurm gateway` is run; job: a small job. Default: the first that the site allows.",
    )
    bind: Word | None = Field(
        default=None, description="Address to listen on. Default: the site's, else 127.0.0.1."
    )
    port: Annotated[Natural, Field(le=65535)] = Field(
        default=0, description="Port to listen on. Default: the first free one of the site."
    )
    workers: Annotated[Count, Field(le=64)] = Field(
        default=1, description="Router processes that share the port, each good for one core."
    )
    spares: Annotated[Natural, Field(le=8)] | None = Field(
        default=None,
        description="With `home: job`: jobs that wait in the queue to take over. Default: the "
        "site's, else 2.",
    )
    time_limit: TimeLimit | None = Field(
        default=None,
        description="With `home: job`: time limit of the gateway's jobs. Default: that of the "
        "deployment's.",
    )
    tls: Tls | None = Field(default=None, description="Serve HTTPS instead of HTTP.")
    policy: Literal["affinity", "power_of_two"] = Field(
        default="affinity",
        description="How a replica is chosen. affinity: prompts that begin alike go where their "
        "beginning is cached, as long as the load there allows it; power_of_two: the less loaded "
        "of two.",
    )
    hedge_after_s: Positive | None = Field(
        default=None,
        description="Without an answer for so many seconds, ask a second replica too and take "
        "what comes first. It costs work twice. Default: never.",
    )
    limits: Limits = Field(default=Limits(), description="What a router takes on at most.")
    audit: Flag = Field(
        default=True,
        description="Write a record of every request: who, what, which replica, how many tokens, "
        "how long; no prompts and no answers.",
    )
    audit_gib: Positive = Field(
        default=10.0,
        description="Size of all audit files in GiB; above it the oldest are removed.",
    )


class Survive(Section):
    """What every shard must outlive; a plan in which one does not is refused. What is left out is
    tried (2 nodes, 1 switch, 1 cell), and the plan tells how far it gets."""

    nodes: Annotated[Natural, Field(le=8)] | None = Field(
        default=None, description="Any so many worker nodes at a time."
    )
    switches: Annotated[Natural, Field(le=8)] | None = Field(
        default=None,
        description="Any so many switches at a time. Proved when Slurm has granted nodes: `status` "
        "tells.",
    )
    cells: Annotated[Natural, Field(le=8)] | None = Field(
        default=None,
        description="Any so many cells at a time; the loss of the node that leads a cell is the "
        "loss of the cell.",
    )


class Autoscale(Section):
    """When replicas are added and taken away: first on the nodes that a deployment has, then by
    cells. Every number of replicas is one of each shard."""

    min: Count = Field(default=1, description="Replicas at least.")
    max: ReplicaCount | None = Field(
        default=None,
        description="Replicas at most; the plan has room for so many. Default: those of the shard.",
    )
    min_per_model: Count = Field(
        default=1, description="Replicas at least of each model, all its shards together."
    )
    up_at: Share = Field(
        default=0.75, description="Use of capacity above which replicas are added."
    )
    down_at: Share = Field(
        default=0.25, description="Use of capacity below which replicas are taken away."
    )
    cooldown_s: Positive = Field(
        default=120.0,
        description="Seconds after any change until replicas are taken away, and for how long they "
        "must not have been needed. More are added at once.",
    )
    requests_per_replica: Count | None = Field(
        default=None,
        description="Requests that a replica works on at a time: its capacity. Default: "
        "gateway.limits.max_in_flight_per_replica, else the engine's max-num-seqs, else 256.",
    )
    scale_to_zero: Flag = Field(
        default=False,
        description="No replica at all while nobody asks; the first request waits for one.",
    )
    idle_s: Positive = Field(
        default=600.0, description="With scale_to_zero: seconds without a request until then."
    )

    @model_validator(mode="after")
    def _bounds(self) -> Autoscale:
        if self.max is not None and self.min > self.max:
            raise bad(f"min is {self.min}, more than max, {self.max}")
        if self.down_at >= self.up_at:
            raise bad(f"down_at is {self.down_at:g}: it must be less than up_at, {self.up_at:g}")
        return self


def _ascending(steps: tuple[float, ...]) -> tuple[float, ...]:
    if list(steps) != sorted(set(steps)) or steps[-1] != 100:
        raise bad("the steps must ascend, and the last one must be 100")
    return steps


Percent = Annotated[float, Strict(), Field(gt=0, le=100, allow_inf_nan=False)]


class Rollout(Section):
    """How `exaslurm rollout` brings this spec up beside the one that runs."""

    steps_percent: Annotated[tuple[Percent, ...], AfterValidator(_ascending)] = Field(
        default=_ROLLOUT.steps_percent,
        min_length=1,
        description="Shares of the requests that the new version gets, one after the other.",
    )
    hold_s: Annotated[float, Strict(), Field(ge=0, le=MOST, allow_inf_nan=False)] = Field(
        default=_ROLLOUT.hold_s, description="Seconds for which each share is held."
    )
    min_requests: Natural = Field(
        default=_ROLLOUT.min_requests,
        description="Requests that the new version shall have got in a step; for these the step "
        "lasts up to twice as long.",
    )
    surge: Count = Field(
        default=_ROLLOUT.surge,
        description="Cells that come up at a time, and may have a job more than before.",
    )
    slower: Annotated[float, Strict(), Field(gt=1, le=100, allow_inf_nan=False)] = Field(
        default=_ROLLOUT.slower,
        description="It is stopped where its answers take so many times as long as the old ones.",
    )
    failures: Share = Field(
        default=_ROLLOUT.failures,
        description="It is stopped where so much more of its requests fail than of the old ones.",
    )
    by: Literal["random", "key"] = Field(
        default=_ROLLOUT.by,
        description="Requests are divided by chance, or a client's key stays with one version.",
    )


class SlurmOptions(Section):
    """What is added to, or left out of, the batch scripts."""

    extra_directives: tuple[FreeDirective, ...] = Field(
        default=(),
        description="sbatch options for every component, such as --wckey=abc. One that the "
        "plan has already is replaced.",
    )
    skip_directives: tuple[DirectiveName, ...] = Field(
        default=(), description="Long names of sbatch options to leave out."
    )
    prologue: tuple[Text, ...] = Field(
        default=(), description="Lines of shell, run after the site's own, before anything else."
    )


def _distinct_models(models: tuple[Model, ...]) -> tuple[Model, ...]:
    _distinct("models", [model.name for model in models])
    return models


class Spec(Root):
    """What one deployment shall be."""

    schema_: Literal["exaslurm/v1"] = Field(alias="schema", description="exaslurm/v1")
    deployment: Name = Field(description="Name of the deployment; one directory, one service.")
    site: Name = Field(description="Site config to use.")
    account: Word | None = Field(
        default=None, description="Slurm account. Default: SBATCH_ACCOUNT."
    )
    qos: Word | None = Field(default=None, description="Quality of service. Default: SBATCH_QOS.")
    partition: Word | None = Field(
        default=None, description="Partition of the workers. Default: their node kind's."
    )
    time_limit: TimeLimit | None = Field(
        default=None, description="Wall time of each cell's job, in any of Slurm's forms."
    )
    reservation: Word | None = Field(default=None, description="Slurm reservation.")
    workers: Annotated[tuple[Workers, ...], ONE_OR_LIST] = Field(
        default=(Workers(),),
        min_length=1,
        description="Nodes for replicas: one mapping, or a list of them.",
    )
    head: Head = Field(default=Head(), description="The node that leads a cell.")
    models: Annotated[tuple[Model, ...], AfterValidator(_distinct_models)] = Field(
        min_length=1, description="What is served."
    )
    survive: Survive = Field(
        default=Survive(), description="What every shard must outlive, or the plan is refused."
    )
    ray: Flag | None = Field(
        default=None, description="Bring up a Ray cluster in each cell. Default: the site's."
    )
    gateway: Gateway = Field(default=Gateway(), description="The address that clients use.")
    autoscale: Autoscale | None = Field(
        default=None,
        description="When replicas come and go. Default: never, there are as many as shards say.",
    )
    rollout: Rollout = Field(
        default=Rollout(), description="How this spec takes the place of one that runs."
    )
    slurm: SlurmOptions = Field(
        default=SlurmOptions(), description="What is added to or left out of the batch scripts."
    )

    _directory: str = "/"

    @property
    def directory(self) -> str:
        """Absolute directory of the file; relative paths in the spec start there."""
        return self._directory

    def in_directory(self, directory: str) -> Spec:
        """Remember the directory; returns itself."""
        self._directory = directory
        return self

    def shard_names(self) -> list[str]:
        """``model:shard`` of every shard, in the order of the spec."""
        return [f"{model.name}:{shard.name}" for model in self.models for shard in model.shards]
