"""A Slurm controller that was taught a site: its partitions, nodes, GPUs, features and rules.

It has no compute nodes. They are declared as powered-down cloud nodes, which the scheduler counts
on, so that `sbatch --test-only` answers as it would on the real machine: it checks partition, time,
sizes, GRES, memory and features. What the site's own submit filter would ask for or refuse is
written into a job_submit.lua.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from exaslurm.site.model import NodeKind, Site
from exaslurm.site.queues import Partition
from exaslurm.util.fields import time_limit_s

# Enough for the samples; the controller keeps a table of all of them.
MOST_NODES = 16
# Where the site config does not say what a node has.
ANY_CPUS = 256
ANY_MEM_GIB = 1024
ANY_GPUS = 8
DEFAULT_PARTITION = "everything"


@dataclass(frozen=True)
class Place:
    """Where the controller runs and keeps its files."""

    host: str
    address: str
    port: int
    directory: str  # of its configuration, on every host the same
    state: str  # on its own host
    version: tuple[int, int]


def files(site: Site, place: Place) -> dict[str, str]:
    """Slurm's configuration files, by name."""
    plugin = "disabled" if place.version >= (23, 11) else "cgroup/v1"
    return {
        "slurm.conf": "\n".join([*_controller(site, place), *_nodes(site), *_partitions(site), ""]),
        "gres.conf": "\n".join([*_gres(site), ""]),
        "cgroup.conf": f"CgroupPlugin={plugin}\n",
        "job_submit.lua": job_submit_lua(site),
    }


def _controller(site: Site, place: Place) -> list[str]:
    return [
        f"ClusterName={site.name}",
        f"SlurmctldHost={place.host}({place.address})",
        f"SlurmctldPort={place.port}",
        "SlurmUser=slurm",
        "AuthType=auth/munge",
        "MailProg=/bin/true",
        f"StateSaveLocation={place.state}/state",
        f"SlurmctldPidFile={place.state}/slurmctld.pid",
        f"SlurmctldLogFile={place.state}/slurmctld.log",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "SchedulerType=sched/backfill",
        # A site that knows neither --gres nor --gpus-per-node has no GRES.
        *([] if site.slurm.gres == "none" else ["GresTypes=gpu"]),
        # A time or size that no partition takes is refused, not left waiting.
        "EnforcePartLimits=ALL",
        "JobSubmitPlugins=lua",
        # Nodes that are powered down count as there.
        "SuspendProgram=/bin/true",
        "ResumeProgram=/bin/true",
        "SuspendTime=3600",
    ]


def _count(kind: NodeKind) -> int:
    return min(kind.count or MOST_NODES, MOST_NODES)


def node_range(name: str, kind: NodeKind) -> str:
    return f"{name}-n[1-{_count(kind)}]"


def _nodes(site: Site) -> Iterator[str]:
    for name, kind in site.node_kinds.items():
        words = [
            f"NodeName={node_range(name, kind)}",
            f"CPUs={kind.cpus or ANY_CPUS}",
            f"RealMemory={round((kind.mem_gib or ANY_MEM_GIB) * 1024)}",
            "State=CLOUD",
        ]
        if kind.reserved_cores:
            words.insert(2, f"CoreSpecCount={kind.reserved_cores}")
        features = _features(kind)
        if features:
            words.append(f"Feature={','.join(features)}")
        if gpus_of(site, kind):
            words.append(f"Gres={_gpu(site, kind)}")
        yield " ".join(words)


def _features(kind: NodeKind) -> list[str]:
    asked = (kind.constraint or "").replace("|", "&").split("&")
    return list(dict.fromkeys([*filter(None, asked), *kind.features]))


def gpus_of(site: Site, kind: NodeKind) -> int:
    """GPUs that Slurm knows of on a node; a kind of which little is known may have some."""
    if site.slurm.gres == "none":
        return 0
    unknown = kind.gpus is None and kind.cpus is None and kind.device not in (None, "cpu")
    return ANY_GPUS if unknown else kind.gpus or 0


def _gpu(site: Site, kind: NodeKind) -> str:
    return ":".join(filter(None, ["gpu", kind.gpu_type, str(gpus_of(site, kind))]))


def _gres(site: Site) -> Iterator[str]:
    for name, kind in site.node_kinds.items():
        count = gpus_of(site, kind)
        if count:
            typed = f"Type={kind.gpu_type} " if kind.gpu_type else ""
            yield f"NodeName={node_range(name, kind)} Name=gpu {typed}Count={count}"


def _partitions(site: Site) -> Iterator[str]:
    """Every partition that the site names, and one for nodes of no partition."""
    members: dict[str, list[str]] = {name: [] for name in site.partitions}
    for name, kind in site.node_kinds.items():
        members.setdefault(kind.partition or DEFAULT_PARTITION, []).append(node_range(name, kind))
    everything = [node_range(name, kind) for name, kind in site.node_kinds.items()]
    default = DEFAULT_PARTITION if DEFAULT_PARTITION in members else next(iter(members))
    for name, nodes in members.items():
        limits = site.partitions.get(name, Partition())
        words = [f"PartitionName={name}", f"Nodes={','.join(nodes or everything)}", "State=UP"]
        words.append(f"Default={'YES' if name == default else 'NO'}")
        longest = _longest(limits)
        words.append(f"MaxTime={longest or 'UNLIMITED'}")
        most = limits.most_nodes()
        if most is not None:
            words.append(f"MaxNodes={most}")
        yield " ".join(words)


def _longest(limits: Partition) -> str | None:
    times = [item.max_time for item in limits.time_by_nodes]
    times += [limits.max_time] if limits.max_time else []
    return max(times, key=time_limit_s, default=None)


# What a submit filter sees of an option: an expression that is true if it was given.
_GIVEN = {
    "account": "job.account ~= nil and job.account ~= ''",
    "partition": "job.partition ~= nil and job.partition ~= ''",
    "qos": "job.qos ~= nil and job.qos ~= ''",
    "constraint": "job.features ~= nil and job.features ~= ''",
    "time": "job.time_limit ~= nil and job.time_limit ~= slurm.NO_VAL",
    "nodes": "job.min_nodes ~= nil and job.min_nodes ~= slurm.NO_VAL",
    "mem": "job.pn_min_memory ~= nil and job.pn_min_memory ~= slurm.NO_VAL64",
    "gres": "job.tres_per_node ~= nil and job.tres_per_node ~= ''",
    "gpus-per-node": "job.tres_per_node ~= nil and job.tres_per_node ~= ''",
    "gpus-per-task": "job.tres_per_task ~= nil and string.find(job.tres_per_task, 'gpu') ~= nil",
    "exclusive": "job.shared == 0",
}
# Options that a filter does not see, or sees always.
UNSEEN = frozenset({"export", "ntasks", "ntasks-per-node"})


def job_submit_lua(site: Site) -> str:
    """The site's rules as its own submit filter would keep them."""
    slurm = site.slurm
    forbidden = [*slurm.forbidden_directives, *(["mem"] if slurm.memory == "none" else [])]
    lines = ["function slurm_job_submit(job, partitions, uid)"]
    lines += _rules(slurm.mandatory_directives, "not ({})", "is missing")
    lines += _rules(forbidden, "{}", "is refused here")
    if any(kind.require_gpus for kind in site.node_kinds.values()):
        lines += _gpu_rules(site)
    lines += ["  return slurm.SUCCESS", "end", ""]
    lines += [
        "function slurm_job_modify(job, old, partitions, uid)",
        "  return slurm.SUCCESS",
        "end",
    ]
    return "\n".join([*lines, "return slurm.SUCCESS", ""])


def _rules(options: Iterable[str], pattern: str, says: str) -> Iterator[str]:
    for option in dict.fromkeys(item.removeprefix("--") for item in options):
        if option not in UNSEEN:
            yield from _rule(pattern.format(_GIVEN[option]), f"--{option} {says}")


def _gpu_rules(site: Site) -> Iterator[str]:
    for kind in site.node_kinds.values():
        if kind.require_gpus and kind.partition:
            asked = f"job.partition == '{kind.partition}' and not ({_GIVEN['gres']})"
            yield from _rule(asked, f"partition {kind.partition} wants GPUs asked for")


def _rule(condition: str, message: str) -> Iterator[str]:
    yield f"  if {condition} then"
    yield f'    slurm.log_user("{message}")'
    yield "    return slurm.ERROR"
    yield "  end"
