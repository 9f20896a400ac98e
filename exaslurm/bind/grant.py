"""What Slurm granted of a node, as parts that can be handed out."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from exaslurm.bind.parts import GrantedGpu, Want
from exaslurm.core.facts import GpuFact, NodeFacts
from exaslurm.core.topology import Core, Gpu, NodeTopology, Vendor

# A NUMA node's size is its MemTotal, from which the kernel has taken its own; shares of replicas
# are of what the site says a node has. So much more than MemTotal is still taken to fit.
_TOLERANCE = 16
# A part of a core is little to a replica of so many cores.
LITTLE = 8


def granted_cores(topology: NodeTopology, cpus: Collection[int]) -> tuple[Core, ...]:
    """Cores with those of their CPUs that were granted; a CPU that no core of the topology has is
    a core of its own."""
    granted = set(cpus)
    found = []
    for core in topology.cores:
        own = tuple(cpu for cpu in core.cpus if cpu in granted)
        if own:
            found.append(dataclasses.replace(core, cpus=own))
    home = {cpu: node.index for node in topology.numa for cpu in node.cpus}
    found += [
        Core(cpus=(cpu,), package=0, numa=home.get(cpu))
        for cpu in sorted(granted - set(topology.cpus))
    ]
    return tuple(sorted(found, key=lambda core: core.cpus))


def without(cores: Iterable[Core], cpus: Collection[int], topology: NodeTopology) -> list[Core]:
    """Less every core that one of these CPUs is of: its other threads go with it."""
    gone = with_siblings(topology, cpus)
    return [core for core in cores if not gone & set(core.cpus)]


def with_siblings(topology: NodeTopology, cpus: Collection[int]) -> set[int]:
    """These CPUs and the other threads of their cores."""
    found = set(cpus)
    for core in topology.cores:
        if found.intersection(core.cpus):
            found.update(core.cpus)
    return found


@dataclass(frozen=True, slots=True)
class Hand:
    """Cores to use, the CPUs that each counts for, and whether parts of a core are rounded down;
    fields as in ``Free``."""

    cores: tuple[Core, ...]
    width: int
    down: bool


def hand(cores: Sequence[Core], wants: Sequence[Want]) -> Hand:
    """How to give these cores to these replicas.

    Whole cores, rounded up. Rounded down where these are too few, so that who asked for 21 threads
    has 20 and all have cores of their own; and where the last core, which the plan left to agent
    and Ray, would go for parts of cores that are little to those who get them.

    A core of which Slurm granted only some threads may be somebody else's too: such cores are used
    only where the whole ones do not suffice, and then every core counts for as little as the least.
    """
    widest = max((len(core.cpus) for core in cores), default=1)
    narrowest = min((len(core.cpus) for core in cores), default=1)
    whole = tuple(core for core in cores if len(core.cpus) == widest)

    up = sum(max(1, -(-want.cpus // widest)) for want in wants)
    down = sum(max(1, want.cpus // widest) for want in wants)
    left = sum(len(core.cpus) for core in whole) - sum(want.cpus for want in wants)
    little = all(want.cpus >= LITTLE * widest for want in wants)
    if down < up == len(whole) and left > 0 and little:
        return Hand(whole, widest, down=True)
    if up <= len(whole):
        return Hand(whole, widest, down=False)
    if down <= len(whole):
        return Hand(whole, widest, down=True)
    return Hand(tuple(cores), narrowest, down=False)


def reserved_cpus(topology: NodeTopology, cpus: Collection[int], count: int) -> tuple[int, ...]:
    """CPUs of the ``count`` that the site keeps to itself, less those that were not granted anyway
    (Slurm's core specialization hides them).

    The first core of each L3 cache, then the second, as Frontier and LUMI do; where no cache is
    known, the first cores of the node. Only whole cores; a site whose CPUs are cores (one thread
    each) is granted one thread of each.
    """
    cores = granted_cores(topology, cpus)
    width = max((len(core.cpus) for core in cores), default=1)
    number = count // width - max(0, len(topology.cores) - len(cores))
    by_cache: dict[int | None, list[Core]] = {}
    for core in topology.cores:
        by_cache.setdefault(core.l3, []).append(core)
    in_order = [core for row in zip_longest(*by_cache.values()) for core in row if core is not None]
    return tuple(sorted(cpu for core in in_order[: max(0, number)] for cpu in core.cpus))


def granted_gpus(facts: NodeFacts) -> list[GrantedGpu]:
    """The step's GPUs, each with its place in the node where that is known."""
    return [
        GrantedGpu(visible_id=fact.visible_id, gpu=_gpu_of(facts.topology, fact, place))
        for place, fact in enumerate(facts.gpus)
    ]


def _gpu_of(topology: NodeTopology, fact: GpuFact, place: int) -> Gpu:
    known = topology.gpu_at(fact.pci)
    if known is not None:
        return known
    vendor: Vendor = fact.vendor if fact.vendor in ("nvidia", "amd", "intel") else "nvidia"  # type: ignore[assignment]
    return Gpu(index=place, vendor=vendor, pci=fact.pci, uuid=fact.uuid, numa=fact.numa)


def free_memory(topology: NodeTopology, taken: Mapping[int, int]) -> dict[int, int]:
    """MiB that may still be promised of each NUMA node with CPUs and memory."""
    return {
        node.index: max(0, node.mem_mib + node.mem_mib // _TOLERANCE - taken.get(node.index, 0))
        for node in topology.memory_nodes
    }
