"""The site config, version 1: what an admin knows about one machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from exaslurm.site.chaos import Chaos
from exaslurm.site.fabric import Fabric
from exaslurm.site.internet import Internet
from exaslurm.site.paths import resolve
from exaslurm.site.queues import Partition, Qos
from exaslurm.site.switches import SwitchMap
from exaslurm.util.fields import (
    TEXT,
    Count,
    Directive,
    DirectiveName,
    Environment,
    EnvName,
    Flag,
    Name,
    Natural,
    PathText,
    PortNumber,
    Positive,
    Root,
    Section,
    Text,
    TimeLimit,
    Word,
    bad,
)
from exaslurm.util.user import user_and_home

GatewayHome = Literal["login", "service", "job"]


CpuList = Annotated[str, TEXT, Field(pattern=r"^\d+(-\d+)?(,\d+(-\d+)?)*$")]


def _switch(value: object) -> object:
    return {"enabled": value} if isinstance(value, bool | str) else value


def _whole(value: object) -> object:
    words = {"yes": True, "on": True, "true": True, "no": False, "off": False, "false": False}
    known = words.get(value.lower(), value) if isinstance(value, str) else value
    if known is True or known is False or known == "many":
        return known
    raise bad("must be true, false or many")


class Ray(Section):
    """Ray inside a cell."""

    enabled: Flag = Field(default=True, description="Bring up a Ray cluster in each cell.")
    object_store_mib: Annotated[int, Field(ge=80)] = Field(
        default=256, description="Object store of each node in MiB (Ray wants 80 at least)."
    )


class Slurm(Section):
    """How this site's Slurm wants to be asked."""

    version: Word | None = Field(
        default=None, description="Version, such as 22.05. Default: asked of `sbatch --version`."
    )
    hetjobs: Flag = Field(
        default=True,
        description="Heterogeneous jobs work, with a CPU-only component. If not, a cell is one "
        "ordinary job whose first node also carries the head.",
    )
    memory: Literal["per_node", "all", "none"] = Field(
        default="per_node",
        description="per_node: --mem with what is needed; all: --mem=0; none: --mem is refused.",
    )
    gres: Literal["gres", "gpus-per-node", "none"] = Field(
        default="gres",
        description="gres: --gres=gpu:N; gpus-per-node: --gpus-per-node=N; none: whole nodes "
        "come with their GPUs and neither option is known.",
    )
    export: Word | None = Field(
        default=None, description="Value of sbatch --export. Default: the option is not given."
    )
    signal_s: Count = Field(
        default=120, description="Seconds before the time limit at which the job is warned."
    )
    poll_floor_s: Positive = Field(
        default=30.0, description="Least seconds between two questions to the scheduler."
    )
    ray: Annotated[Ray, BeforeValidator(_switch)] = Field(
        default=Ray(), description="true, false, or a mapping."
    )
    srun_args: tuple[Directive, ...] = Field(
        default=(), description="Options added to every srun, such as --network=disable_rdzv_get."
    )
    extra_directives: tuple[Directive, ...] = Field(
        default=(), description="sbatch options added to every component."
    )
    max_steps: Count | None = Field(
        default=None,
        description="Steps (srun) of a job at the same time; a cell has one for each component.",
    )
    mandatory_directives: tuple[DirectiveName, ...] = Field(
        default=(),
        description="Long names of options without which this site refuses a job, such as account.",
    )
    forbidden_directives: tuple[DirectiveName, ...] = Field(
        default=(), description="Long names of options that this site refuses: never rendered."
    )


class ReplicaDefaults(Section):
    """What a replica gets on nodes of this kind where the spec is silent."""

    cores: Count | None = Field(
        default=None, description="Logical CPUs. Default: an equal share of the node."
    )
    mem_gib: Positive | None = Field(
        default=None, description="Host memory in GiB. Default: an equal share of the node."
    )


class NodeKind(Section):
    """Nodes that are alike. What is left out is not known, and not checked."""

    description: Text | None = Field(default=None, description="For people.")
    count: Count | None = Field(
        default=None, description="Nodes of this kind that there are; more are not to be had."
    )
    partition: Word | None = Field(default=None, description="Partition. Default: Slurm's.")
    qos: Word | None = Field(
        default=None, description="Quality of service where the spec names none. Default: Slurm's."
    )
    account_suffix: Annotated[str, TEXT, Field(pattern=r"^[A-Za-z0-9_.-]{0,32}$")] | None = Field(
        default=None,
        description="How accounts for these nodes end, such as _g: it takes the place of another "
        "kind's in the account that the user names. Default: the account stays as it is.",
    )
    cpus: Count | None = Field(default=None, description="Logical CPUs of a node.")
    mem_gib: Positive | None = Field(default=None, description="Memory that a job may have, GiB.")
    gpus: Natural | None = Field(
        default=None, description="GPUs of a node. Default: none, if cpus is given."
    )
    gpu_type: Word | None = Field(default=None, description="Type in the GRES name, such as a100.")
    device: Literal["cpu", "cuda", "rocm", "xpu"] | None = Field(
        default=None, description="What engines run on. Default: cuda if there are GPUs, else cpu."
    )
    gpu_cpus: tuple[CpuList, ...] = Field(
        default=(),
        description="Logical CPUs near each GPU, in the order of the GPUs' numbers, such as 48-63. "
        "Engines are bound by what the nodes themselves show; doctor compares.",
    )
    reserved_cores: Natural = Field(
        default=0, description="Logical CPUs that the site keeps to itself (core specialization)."
    )
    exclusive: Annotated[bool | Literal["many"], BeforeValidator(_whole)] = Field(
        default=False,
        description="Nodes are given whole: all of each node is asked for. many: only to jobs of "
        "more than one node.",
    )
    require_gpus: Flag = Field(
        default=False, description="The partition refuses jobs that ask for no GPU."
    )
    constraint: Word | None = Field(default=None, description="Value of --constraint.")
    features: tuple[Word, ...] = Field(default=(), description="Slurm features of these nodes.")
    per_replica: ReplicaDefaults = Field(
        default=ReplicaDefaults(), description="What a replica gets where the spec is silent."
    )

    def is_whole(self, nodes: int) -> bool:
        """Whether a job of so many nodes gets, and has to ask for, all of each."""
        return self.exclusive is True or (self.exclusive == "many" and nodes > 1)

    @property
    def known_gpus(self) -> int | None:
        """GPUs of a node, None where nobody knows."""
        return 0 if self.gpus is None and self.cpus is not None else self.gpus

    @property
    def known_cores(self) -> int | None:
        """Logical CPUs of a node that a job may have, None where nobody knows."""
        return None if self.cpus is None else self.cpus - self.reserved_cores


class HeadDefaults(Section):
    """The node that leads a cell, where the spec is silent."""

    kind: Name | None = Field(
        default=None, description="Node kind. Default: one without GPUs, else the workers'."
    )
    cpus: Count = Field(default=2, description="Logical CPUs asked for.")
    mem_gib: Positive = Field(default=4.0, description="Memory asked for, GiB.")


class WorkerDefaults(Section):
    """The nodes that carry replicas, where the spec is silent."""

    kind: Name | None = Field(
        default=None, description="Node kind. Default: one with GPUs, else the first."
    )
    nodes_per_cell: Count | None = Field(
        default=None, description="Nodes of a cell at most. Default: no limit."
    )


class Service(Section):
    """What node agent and Ray need on each worker node, besides the replicas."""

    cores: Natural = Field(default=1, description="Logical CPUs.")
    mem_gib: Positive = Field(default=2.0, description="Memory, GiB.")


class Ports(Section):
    """Ports that deployments may listen on; below the kernel's ephemeral range."""

    first: PortNumber = Field(default=20000, description="First port.")
    last: PortNumber = Field(default=31999, description="Last port.")
    block: Count = Field(default=500, description="Ports of one job on each of its nodes.")


class Storage(Section):
    """Directories. $HOME and $USER are understood; in `shared` and `local` also $ACCOUNT, the
    Slurm account, and what `variables` names."""

    state: PathText | None = Field(
        default=None,
        description="Run directories go to STATE/exaslurm, on every node the same. "
        "Default: XDG_STATE_HOME, else ~/.local/state. EXASLURM_HOME overrides it.",
    )
    shared: PathText = Field(
        default="$HOME/.cache", description="Large shared files, such as models, on every node."
    )
    local: PathText | None = Field(
        default=None, description="Fast storage of each node, such as NVMe. Default: there is none."
    )
    ram: PathText = Field(
        default="/tmp",
        description="Short-lived small files and sockets of each node. At most 16 characters, "
        "because the path of a socket is limited to 107 bytes.",
    )


class Container(Section):
    """One container on each node, in which everything of a cell runs. See howto/containers.md."""

    runtime: Literal[
        "apptainer", "singularity", "podman-hpc", "pyxis", "container-engine", "none"
    ] = Field(
        default="none",
        description="Container runtime. pyxis: enroot, by srun's --container-image; "
        "container-engine: srun's --environment (CSCS).",
    )
    image: Text | None = Field(
        default=None,
        description="apptainer, singularity: path of a .sif file or a directory; podman-hpc: name "
        "of an image; pyxis: path of a .sqsh file, or a name; container-engine: path or name of "
        "an EDF. Variables as in `storage`. Default: nothing runs in a container.",
    )
    executable: Text | None = Field(
        default=None, description="The runtime's command. Default: its name, looked up on PATH."
    )
    python: Text = Field(
        default="python3", description="Python (3.11 or newer) in the image, with vLLM and Ray."
    )
    package: Literal["host", "image"] = Field(
        default="host",
        description="Which exaslurm runs in it. host: that of the batch script, bound into it; "
        "image: the one that the image has.",
    )
    binds: tuple[
        Annotated[str, TEXT, Field(pattern=r"^(/|~/|\$)[^:,]*(:(/|~/|\$)[^:,]*)?(:r[ow])?$")],
        ...,
    ] = Field(
        default=(),
        description="SOURCE[:TARGET][:ro], each, besides the directories of `storage`, the "
        "deployment's own and models given by path.",
    )
    home: Flag = Field(
        default=False,
        description="The home directory is visible. It often hides what it should "
        "not, such as packages in ~/.local.",
    )
    args: tuple[Text, ...] = Field(
        default=(),
        description="Words added to the runtime's command line (pyxis, container-engine: srun's).",
    )


class Limits(Section):
    """Ceilings of the site, for any partition."""

    max_nodes: Count | None = Field(default=None, description="Nodes of a deployment at most.")
    max_gpus: Count | None = Field(default=None, description="GPUs of a deployment at most.")
    max_replicas: Count | None = Field(
        default=None, description="Replicas of a deployment at most."
    )
    max_jobs: Count | None = Field(
        default=None, description="Jobs of a user at most; each component of a cell counts as one."
    )
    max_time: TimeLimit | None = Field(default=None, description="Wall time at most.")
    default_time: TimeLimit | None = Field(
        default=None, description="Wall time where the spec is silent."
    )


class GatewayRules(Section):
    """Where a router may run."""

    homes: tuple[GatewayHome, ...] = Field(
        default=("service",), min_length=1, description="Allowed homes; the first is the default."
    )
    background: Flag = Field(
        default=False,
        description="`submit` may leave a router running in the background of the login node.",
    )
    bind: Word = Field(default="127.0.0.1", description="Address that a router listens on.")
    kind: Name | None = Field(
        default=None,
        description="Node kind of a gateway in a job. Default: the head's, else one without GPUs.",
    )
    cpus: Count = Field(
        default=2, description="Logical CPUs of that job; at least one more than `gateway.workers`."
    )
    mem_gib: Positive = Field(default=2.0, description="Memory of that job, GiB.")
    spares: Annotated[Natural, Field(le=8)] = Field(
        default=2, description="Such jobs that wait for the end of the one that serves."
    )


class Timeouts(Section):
    """Deadlines in seconds."""

    nodes_s: Positive = Field(default=600.0, description="All nodes of a cell have reported.")
    stage_s: Positive = Field(default=1800.0, description="A model is on its node.")
    ready_s: Positive = Field(default=1800.0, description="A replica is ready after its start.")
    drain_s: Positive = Field(
        default=30.0, description="Requests in flight may end when a replica is stopped."
    )
    ray_s: Positive = Field(default=300.0, description="Ray is up; without it the cell goes on.")
    hung_s: Positive = Field(
        default=60.0, description="An engine whose /health is silent is started again."
    )
    stall_s: Positive = Field(
        default=120.0,
        description="An engine that has requests and shows no sign of work is started again; one "
        "on CPUs that computes meanwhile has ten times as long.",
    )


class Site(Root):
    """One machine and its rules."""

    schema_: Literal["exaslurm/site/v1"] = Field(alias="schema", description="exaslurm/site/v1")
    name: Name = Field(description="Name of the site; the file is NAME.yaml.")
    description: Text | None = Field(default=None, description="For people.")
    extends: Name | None = Field(
        default=None,
        description="Another site config that this one is laid over: mappings merge, everything "
        "else is replaced. The same name means the file of that name further down the search path.",
    )
    scheduler: Literal["slurm", "local"] = Field(
        default="slurm", description="local: no Slurm, one cell of processes on this machine."
    )
    slurm: Slurm = Field(default=Slurm(), description="How Slurm wants to be asked.")
    node_kinds: dict[Name, NodeKind] = Field(
        min_length=1, description="Nodes that are alike, by a name of your choice."
    )
    partitions: dict[Word, Partition] = Field(
        default_factory=dict, description="Partitions and their limits. Default: not checked."
    )
    qos: dict[Word, Qos] = Field(
        default_factory=dict,
        description="Qualities of service and their limits. Default: not checked.",
    )
    switches: SwitchMap = Field(
        default_factory=dict,
        description="Switches, or whatever else fails as one, where Slurm does not know them: name "
        "to the nodes or switches right below it, such as rack1: nid[001-064], row1: rack[1-8].",
    )
    workers: WorkerDefaults = Field(
        default=WorkerDefaults(), description="Nodes that carry replicas."
    )
    head: HeadDefaults = Field(default=HeadDefaults(), description="The node that leads a cell.")
    service: Service = Field(
        default=Service(), description="What agent and Ray need on each worker node."
    )
    interface: Annotated[str, TEXT, Field(pattern=r"^[A-Za-z0-9_.:*?\[\]-]{1,32}$")] | None = Field(
        default=None,
        description="Network interface that nodes use among themselves, such as hsn0, ib0 or a "
        "pattern (hsn*); loopback for one machine. Default: the address of the node's name.",
    )
    host_suffix: Annotated[str, TEXT, Field(pattern=r"^[A-Za-z0-9.-]{0,32}$")] = Field(
        default="", description="Added to a host name before it is looked up, such as -hsn0 or i."
    )
    fabric: Fabric = Field(default=Fabric(), description="The network between nodes.")
    ports: Ports = Field(default=Ports(), description="Ports that may be used.")
    storage: Storage = Field(default=Storage(), description="Directories.")
    variables: tuple[EnvName, ...] = Field(
        default=(),
        description="Variables of the user's login shell that `storage` may use, such as SCRATCH.",
    )
    internet: Internet = Field(default=Internet(), description="Whether nodes reach the internet.")
    container: Container = Field(
        default=Container(), description="A container on each node, if one is wanted."
    )
    python: PathText | None = Field(
        default=None,
        description="Python (3.11 or newer) on the nodes, with exaslurm[node] in it. "
        "Default: the one that runs the command.",
    )
    modules: tuple[Word, ...] = Field(
        default=(), description="Modules that the batch script loads, before the prologue."
    )
    prologue: tuple[Text, ...] = Field(
        default=(), description="Lines of shell in the batch script, before anything else."
    )
    env: Environment = Field(
        default_factory=dict, description="Environment of everything in the allocation."
    )
    templates: PathText | None = Field(
        default=None, description="Directory with batch script templates that replace our own."
    )
    limits: Limits = Field(default=Limits(), description="Ceilings of the site.")
    gateway: GatewayRules = Field(default=GatewayRules(), description="Where a router may run.")
    timeouts: Timeouts = Field(default=Timeouts(), description="Deadlines.")
    chaos: Chaos = Field(default=Chaos(), description="Faults on purpose (exaslurm chaos).")
    locks: tuple[Text, ...] = Field(
        default=(),
        description="Keys (dotted) that a config laid over this one may not change, and, as "
        "`spec.KEY`, that a spec may not give.",
    )
    unverified: tuple[Text, ...] = Field(
        default=(),
        description="Keys (dotted; a remark in brackets may follow) whose values nobody has "
        "confirmed on the machine. Shown whenever the site is used.",
    )

    def path_variables(
        self, environ: Mapping[str, str], account: str | None
    ) -> dict[str, str | None]:
        """What paths may use besides $HOME and $USER, for ``resolve``; None: it has no value."""
        return {"ACCOUNT": account, **{name: environ.get(name) for name in self.variables}}

    def state_dir(self, environ: Mapping[str, str]) -> str | None:
        """Where the site wants run directories, for ``rundir.state_root``; None: it does not
        say."""
        if self.storage.state is None:
            return None
        user, home = user_and_home(environ)
        return resolve(self.storage.state, user=user, home=home)
