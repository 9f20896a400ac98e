"""The cost of a placement on one node: what ``optimum`` makes small.

The parts are compared in this order; all are sums over the replicas that are placed together.

1. ``gpus``: between the GPUs of one replica, which talk to each other all the time.
2. ``cores``: from each core to its GPU's NUMA node, without a GPU to the one where the replica is
   at home. Not 0 means: memory, or a GPU, on the far side of a link between sockets.
3. ``memory``: MiB that do not fit where the cores are, by the way to where they lie.
4. ``ports``: from each GPU (or the home) to its network port.
5. ``port_use``: the squares of how many ranks use each port: few is 0, even is small.
6. ``left``: the squares of how many cores each NUMA node has left: even is small.
7. ``kept``: 1 if the core that agent and Ray are on is given away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from exaslurm.bind.distance import Distances, port_name
from exaslurm.bind.flow import transport
from exaslurm.bind.parts import Fit, Free, Want
from exaslurm.core.topology import Core, NodeTopology


class Cost(NamedTuple):
    """Smaller is better, the first part first."""

    gpus: int = 0
    cores: int = 0
    memory: int = 0
    ports: int = 0
    port_use: int = 0
    left: int = 0
    kept: int = 0


@cache
def distances(topology: NodeTopology) -> Distances:
    """The distances of a node; kept, as they are asked for again and again."""
    return Distances(topology)


def cost(free: Free, wants: Sequence[Want], fits: Sequence[Fit]) -> Cost:
    """Cost of giving the i-th replica the i-th fit, of what is free."""
    far = distances(free.topology)
    ports = {port_name(pair): pair for pair in free.ports}
    use = Counter(free.port_use)
    total = Counter[str]()
    for fit in fits:
        total["gpus"] += far.among([part.gpu.gpu for part in fit.parts if part.gpu is not None])
        total["cores"] += far_cores(far, fit)
        home = home_of(far, fit)
        for part in fit.parts:
            if part.port is not None:
                gpu = part.gpu.gpu if part.gpu is not None else None
                total["ports"] += far.hca(ports[part.port][0], gpu, home)
                use[part.port] += 1
    memory, _ = memory_of(free, wants, fits)
    taken = [core for fit in fits for core in fit.cores]
    return Cost(
        gpus=total["gpus"],
        cores=total["cores"],
        memory=memory,
        ports=total["ports"],
        port_use=sum(count * count for count in use.values()),
        left=unevenness(left_of(free, taken)),
        kept=int(any(core.cpus[0] == free.keep for core in taken)),
    )


def far_cores(far: Distances, fit: Fit) -> int:
    """Distance of a replica's cores from where they should be."""
    found = 0
    roaming: list[Core] = []
    for part in fit.parts:
        near = part.gpu.gpu.numa if part.gpu is not None else None
        if near is None:
            roaming += part.cores
        else:
            found += sum(far.numa(near, core.numa) for core in part.cores)
    return found + _from_home(far, roaming)[0]


def home_of(far: Distances, fit: Fit) -> int | None:
    """The NUMA node that is nearest to the cores of parts whose GPU's place is not known."""
    roaming = [
        core
        for part in fit.parts
        if part.gpu is None or part.gpu.gpu.numa is None
        for core in part.cores
    ]
    return _from_home(far, roaming)[1]


def _from_home(far: Distances, cores: Sequence[Core]) -> tuple[int, int | None]:
    count = Counter(core.numa for core in cores)
    if not cores:
        return 0, None
    return min(
        (
            sum(far.numa(home, numa) * number for numa, number in count.items()),
            -count[home],
            home,
        )
        for home in homes(far.topology, tuple(count))
    )[::2]


def homes(topology: NodeTopology, of_cores: Sequence[int | None]) -> list[int | None]:
    """NUMA nodes that a replica without GPUs may be at home in, None where nobody knows."""
    found: list[int | None] = [node.index for node in topology.numa if node.cpus]
    return found or list(dict.fromkeys(of_cores)) or [None]


def memory_of(
    free: Free, wants: Sequence[Want], fits: Sequence[Fit]
) -> tuple[int, list[tuple[int, ...]]]:
    """(MiB x distance, NUMA nodes of each replica's memory): near its cores, each NUMA node for as
    much as it has."""
    if len(free.topology.memory_nodes) < 2:
        return 0, [() for _ in fits]
    far = distances(free.topology)
    wanted = [_near_cores(want, fit) for want, fit in zip(wants, fits, strict=True)]
    total = Counter[int | None]()
    for amounts in wanted:
        total.update(amounts)
    there: dict[int | None, int] = dict(free.mem_mib.items())
    found = transport(total, there, far.numa)
    if found is None:
        # More is asked for than there is, which is Slurm's business: all as near as can be.
        there = {node.index: sum(total.values()) for node in free.topology.memory_nodes}
        found = transport(total, there, far.numa)
    assert found is not None
    price, flows = found
    nodes = []
    for amounts in wanted:
        taken: dict[int, None] = {}
        for near, wanted_mib in amounts.items():
            missing = wanted_mib
            for place in sorted(
                (k for a, k in flows if a == near and k is not None),
                key=lambda k: (far.numa(near, k), k),
            ):
                part = min(missing, flows[near, place])
                flows[near, place] -= part
                missing -= part
                if part:
                    taken[place] = None
        nodes.append(tuple(sorted(taken)))
    return price, nodes


def _near_cores(want: Want, fit: Fit) -> Counter[int | None]:
    """MiB by the NUMA nodes of the cores, in proportion; cores of no known node want nothing."""
    count = Counter(core.numa for core in fit.cores if core.numa is not None)
    number = count.total()
    return Counter(
        {numa: max(1, want.mem_mib * some // number) for numa, some in sorted(count.items())}
    )


def left_of(free: Free, taken: Sequence[Core]) -> Counter[int | None]:
    """Cores that are left in each NUMA node."""
    left = Counter(core.numa for core in free.cores)
    left.subtract(core.numa for core in taken)
    return left


def unevenness(left: Counter[int | None]) -> int:
    """0 where nothing is left, small where as much is left everywhere."""
    return sum(count * count for count in left.values())
