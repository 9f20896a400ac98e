"""Which of a replica's cores each of its ranks uses, where vLLM has to be told."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.facts import GpuFact
from exaslurm.core.numbers import ranges
from exaslurm.core.plan import ModelPlan
from exaslurm.core.topology import NodeTopology


def thread_env(replica: ReplicaBinding, model: ModelPlan, topology: NodeTopology) -> dict[str, str]:
    """Threads by the cores that the replica really has: one a core, not one a hardware thread, for
    two compute threads on one core are slower than one.

    A replica that shares its CPUs (``pinned`` false) gets one compute thread: several that all
    take every CPU are slower together than one thread each.
    """
    if model.engine.device != "cpu":
        return {"OMP_NUM_THREADS": "1"} if not replica.cores else {}
    ranks = model.ranks_per_node
    parts = rank_cpus(replica.cores, ranks, topology) if replica.pinned else []
    bind = "|".join(",".join(map(str, part)) for part in parts) or "nobind"
    env = {
        "OMP_NUM_THREADS": str(len(parts[0]) if parts else 1),
        "VLLM_CPU_OMP_THREADS_BIND": bind,
    }
    if model.tensor * model.pipeline == 1:
        # Engine core and worker in one process: a third less memory, and it starts sooner.
        env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    return env


def rank_cpus(cpus: Sequence[int], ranks: int, topology: NodeTopology) -> list[tuple[int, ...]]:
    """One hardware thread of each core, in equal parts, neighbours together; of every core all
    threads where there are fewer cores than ranks; empty if there are too few of those too."""
    own = set(cpus)
    firsts = [next((cpu for cpu in core.cpus if cpu in own), None) for core in topology.cores]
    found = [cpu for cpu in firsts if cpu is not None]
    found += sorted(own - set(topology.cpus))
    if len(found) < ranks:
        found = sorted(own)
    share = len(found) // ranks
    return [tuple(found[rank * share : (rank + 1) * share]) for rank in range(ranks) if share]


def numa_argv(
    replica: ReplicaBinding,
    model: ModelPlan,
    topology: NodeTopology,
    gpus: Mapping[str, GpuFact],
    mentioned: Collection[str],
) -> list[str]:
    """Options that put each rank of a replica over several NUMA nodes beside its own GPU.

    vLLM's ``--numa-bind`` starts a rank under numactl with its cores and its NUMA node, and the
    process that leads them with all CPUs of these NUMA nodes, whatever mask it had before
    (vllm/utils/numa_utils.py, 0.32). So it is used only where all of them are the replica's; where
    they are not, each rank runs on any of the replica's cores and takes the memory next to it.
    """
    numa = [gpus[name].numa for name in replica.gpus if name in gpus]
    near = [node for node in numa if node is not None]
    homes = [node for node in topology.numa if node.index in near]
    if (
        len(homes) < 2
        or len(near) != model.ranks_per_node
        or not replica.pinned
        or set(replica.cores) != {cpu for node in homes for cpu in node.cpus}
        or any(option.startswith("--numa-bind") for option in mentioned)
    ):
        return []
    cores = []
    for place, node in enumerate(near):
        own = [cpu for home in homes if home.index == node for cpu in home.cpus]
        parts = rank_cores(own, near.count(node), topology)
        cores.append(ranges(parts[near[:place].count(node)]))
    return [
        "--numa-bind",
        *("--numa-bind-nodes", *map(str, near)),
        *("--numa-bind-cpus", *cores),
    ]


def rank_cores(cpus: Sequence[int], ranks: int, topology: NodeTopology) -> list[tuple[int, ...]]:
    """Whole cores, with all their threads, in parts that are as equal as can be."""
    own = set(cpus)
    cores = [core.cpus for core in topology.cores if set(core.cpus) <= own]
    base, over = divmod(len(cores), ranks)
    found = []
    for rank in range(ranks):
        first = rank * base + min(rank, over)
        part = cores[first : first + base + (rank < over)]
        found.append(tuple(sorted(cpu for core in part for cpu in core)))
    return found
