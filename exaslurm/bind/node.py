"""Cores, memory node, GPUs and HCA for replicas on one node, from its own topology."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.facts import GpuFact, NodeFacts
from exaslurm.core.placement import Demand, Room
from exaslurm.core.ports import MAX_ENGINES, engine_port
from exaslurm.core.topology import Hca, HcaPort


@dataclass(frozen=True, slots=True)
class Place:
    """What one replica gets on its node."""

    slot: int
    cores: tuple[int, ...]
    pinned: bool
    mem_node: int | None
    gpus: tuple[str, ...]
    hca: str | None


def floats(facts: NodeFacts) -> str | None:
    """Why replicas on this node cannot be given cores of their own, None if they can.

    Outside Slurm nobody hands out cores. Where Slurm was told of more CPUs than there are,
    replicas outnumber cores. Where it granted fewer than the step may run on, it did not say
    which of them are ours, and the others may be somebody else's.
    """
    seen = len(facts.cpus)
    if facts.cpus_granted is None:
        return "no scheduler hands out its cores"
    if facts.cpus_granted > seen:
        return f"Slurm granted {facts.cpus_granted} CPUs, the step may run on {seen}"
    if facts.cpus_granted < seen:
        return f"Slurm granted {facts.cpus_granted} of {seen} CPUs without saying which"
    return None


def room_of(facts: NodeFacts, order: int) -> Room:
    """The free room of an empty node."""
    return Room(
        name=facts.node,
        order=order,
        switch=facts.switch,
        gpus=len(facts.gpus),
        cores=len(facts.cpus) if facts.cpus_granted is None else facts.cpus_granted,
        mem_mib=facts.mem_mib,
    )


class NodePlacer:
    """Hands out the parts of one node, none of them twice.

    ``share_cores``: no replica gets cores of its own.
    """

    def __init__(self, facts: NodeFacts, *, share_cores: bool) -> None:
        self.facts = facts
        self.share_cores = share_cores
        self.free_slots = list(range(MAX_ENGINES))
        self.free_cores = list(facts.cpus)
        self.free_gpus = list(facts.gpus)
        self.hca_use: Counter[str] = Counter()

    def taken(self, replica: ReplicaBinding) -> None:
        """Account for a replica that runs here already."""
        self.free_slots.remove(replica.slot)
        if replica.pinned:
            self.free_cores = [core for core in self.free_cores if core not in replica.cores]
        self.free_gpus = [gpu for gpu in self.free_gpus if gpu.visible_id not in replica.gpus]
        if replica.hca is not None:
            self.hca_use[replica.hca] += 1

    def place(self, demand: Demand) -> Place:
        """The next replica's share. The caller has made sure that slot and GPUs suffice."""
        gpus = self._take_gpus(demand.gpus)
        near = {gpu.numa for gpu in gpus if gpu.numa is not None}
        pinned = not self.share_cores and len(self.free_cores) >= demand.cores
        cores = self._take_cores(demand.cores, near) if pinned else self.facts.cpus
        mem_node = self._mem_node(cores) if pinned else None
        return Place(
            slot=self.free_slots.pop(0),
            cores=cores,
            pinned=pinned,
            mem_node=mem_node,
            gpus=tuple(gpu.visible_id for gpu in gpus),
            hca=self._take_hca(near or ({mem_node} if mem_node is not None else set())),
        )

    def _take_gpus(self, count: int) -> list[GpuFact]:
        """From one NUMA node if one has enough, the one with least to spare; in their order."""
        if count == 0:
            return []
        by_numa: dict[int | None, list[GpuFact]] = {}
        for gpu in self.free_gpus:
            by_numa.setdefault(gpu.numa, []).append(gpu)
        enough = [gpus for gpus in by_numa.values() if len(gpus) >= count]
        chosen = (min(enough, key=len) if enough else self.free_gpus)[:count]
        self.free_gpus = [gpu for gpu in self.free_gpus if gpu not in chosen]
        return chosen

    def _take_cores(self, count: int, near: set[int]) -> tuple[int, ...]:
        """Cores of the NUMA nodes in ``near`` first; without a wish, of the NUMA node with most
        to spare, so that a replica stays in one. The node's first core is the last to go: agent
        and Ray keep it while there are enough others."""
        kept = min(self.facts.cpus)
        domains = self._domains()
        free = {index: [c for c in self.free_cores if domains.get(c) == index] for index in
                dict.fromkeys(domains.get(c) for c in self.free_cores)}  # fmt: skip

        def rank(index: int | None) -> tuple[bool, bool, int, int]:
            spare = len([core for core in free[index] if core != kept])
            return (index not in near, spare < count, -spare, -1 if index is None else index)

        ordered = [core for index in sorted(free, key=rank) for core in free[index]]
        ordered.sort(key=lambda core: core == kept)
        chosen = ordered[:count]
        self.free_cores = [core for core in self.free_cores if core not in chosen]
        return tuple(sorted(chosen))

    def _domains(self) -> dict[int, int]:
        return {core: numa.index for numa in self.facts.topology.numa for core in numa.cpus}

    def _mem_node(self, cores: Iterable[int]) -> int | None:
        """The NUMA node that holds all the cores; None where there is only one to choose, or the
        cores lie in several."""
        with_memory = self.facts.topology.memory_nodes
        domains = self._domains()
        used = {domains.get(core) for core in cores}
        if len(with_memory) < 2 or len(used) != 1:
            return None
        (index,) = used
        return index if any(numa.index == index for numa in with_memory) else None

    def _take_hca(self, near: set[int]) -> str | None:
        """An active port of the fastest class: nearest, then least used, then by name."""
        active = [
            (hca, port)
            for hca in self.facts.topology.hcas
            if hca.fabric != "ethernet"
            for port in hca.ports
            if port.state == "ACTIVE"
        ]
        if not active:
            return None
        fastest = max(port.rate_gbps for _, port in active)

        def rank(pair: tuple[Hca, HcaPort]) -> tuple[bool, int, str, int]:
            hca, port = pair
            return (hca.numa not in near, self.hca_use[_name(pair)], hca.name, port.number)

        best = min((pair for pair in active if pair[1].rate_gbps >= fastest / 2), key=rank)
        self.hca_use[_name(best)] += 1
        return _name(best)


def bound(replica: str, demand: Demand, facts: NodeFacts, place: Place) -> ReplicaBinding:
    """The binding of a replica to its place."""
    return ReplicaBinding(
        id=replica,
        model=demand.model,
        shard=demand.shard,
        node=facts.node,
        address=facts.address,
        port=engine_port(facts.port_base, place.slot),
        slot=place.slot,
        cores=place.cores,
        pinned=place.pinned,
        mem_node=place.mem_node,
        gpus=place.gpus,
        hca=place.hca,
    )


def needs_sharing(facts: NodeFacts, demands: Sequence[Demand]) -> bool:
    """Whether these replicas together want more cores than the node has."""
    return sum(demand.cores for demand in demands) > len(facts.cpus)


def _name(pair: tuple[Hca, HcaPort]) -> str:
    return f"{pair[0].name}:{pair[1].number}"
