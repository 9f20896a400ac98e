"""Cores, memory, GPUs and network ports for replicas on one node, from its own topology."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from exaslurm.bind.grant import (
    free_memory,
    granted_cores,
    granted_gpus,
    hand,
    reserved_cpus,
    with_siblings,
    without,
)
from exaslurm.bind.optimum import optimum
from exaslurm.bind.parts import Fit, Free, Want
from exaslurm.bind.remarks import remark_of
from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.fabric import usable_ports
from exaslurm.core.facts import NodeFacts
from exaslurm.core.placement import Demand, Room
from exaslurm.core.ports import MAX_ENGINES, engine_port


@dataclass(frozen=True, slots=True)
class Place:
    """What one replica gets on its node; fields as in ``ReplicaBinding``."""

    slot: int
    cores: tuple[int, ...]
    pinned: bool
    mem_nodes: tuple[int, ...]
    gpus: tuple[str, ...]
    hca: str | None
    remark: str | None


def floats(facts: NodeFacts) -> str | None:
    """Why replicas on this node cannot be given cores of their own, None if they can.

    Outside Slurm nobody hands out cores. Where Slurm was told of more CPUs than there are,
    replicas outnumber cores; but it may count all threads of cores of which the step uses one each
    (``--hint=nomultithread``). Where it granted fewer than the step may run on, it did not say
    which of them are ours, and the others may be somebody else's.
    """
    seen = len(facts.cpus)
    if facts.cpus_granted is None:
        return "no scheduler hands out its cores"
    if facts.cpus_granted == len(with_siblings(facts.topology, facts.cpus)):
        return None
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
        cores=len(facts.cpus) if floats(facts) is None else facts.cpus_granted or len(facts.cpus),
        mem_mib=facts.mem_mib,
    )


class NodePlacer:
    """Hands out the parts of one node, none of them twice.

    ``expected`` are the demands that will be placed, in that order: they are placed together, so
    that the first does not take what only the last could use. Others are placed one by one beside
    what is there. ``reserved`` is the number of CPUs that the site keeps to itself.
    """

    def __init__(
        self,
        facts: NodeFacts,
        *,
        expected: Sequence[Demand] = (),
        reserved: int = 0,
    ) -> None:
        self.facts = facts
        topology = facts.topology
        self._cores = granted_cores(topology, facts.cpus)
        kept = reserved_cpus(topology, facts.cpus, reserved)
        self._free_cores = without(self._cores, kept, topology)
        self._free_gpus = granted_gpus(facts)
        self._ports = usable_ports(topology.hcas)
        self._port_use: Counter[str] = Counter()
        self._taken_mib: Counter[int] = Counter()
        self._free_slots = list(range(MAX_ENGINES))
        self._shares = floats(facts) is not None
        self._planned: list[Fit] = []
        if expected:
            self._plan(expected)

    def taken(self, replica: ReplicaBinding, mem_mib: int = 0) -> None:
        """Account for a replica that runs here already."""
        self._free_slots.remove(replica.slot)
        if replica.pinned:
            self._free_cores = without(self._free_cores, replica.cores, self.facts.topology)
        self._free_gpus = [gpu for gpu in self._free_gpus if gpu.visible_id not in replica.gpus]
        self._port_use.update(replica.hca.split(",") if replica.hca else ())
        for node in replica.mem_nodes:
            self._taken_mib[node] += mem_mib // len(replica.mem_nodes)

    def place(self, demand: Demand) -> Place:
        """The next replica's share. The caller has made sure that slot and GPUs suffice."""
        shares = self._shares
        if self._planned:
            fit = self._planned.pop(0)
        else:
            found = None if shares else optimum(self._free([_want(demand)]), [_want(demand)])
            shares = found is None
            (fit,) = found or self._without_cores([_want(demand)])
        fit_gpus = [part.gpu for part in fit.parts if part.gpu is not None]
        ports = dict.fromkeys(part.port for part in fit.parts if part.port is not None)
        place = Place(
            slot=self._free_slots[0],
            cores=self.facts.cpus if shares else fit.cpus,
            pinned=not shares,
            mem_nodes=fit.mem_nodes,
            gpus=tuple(gpu.visible_id for gpu in fit_gpus),
            hca=",".join(ports) or None,
            remark=remark_of(self.facts.topology, fit, 0 if shares else demand.cores),
        )
        self.taken(bound("", demand, self.facts, place), demand.mem_mib)
        return place

    def _plan(self, expected: Sequence[Demand]) -> None:
        wants = [_want(demand) for demand in expected]
        found = None if self._shares else optimum(self._free(wants), wants)
        if found is None:
            self._shares = True
            found = self._without_cores(wants)
        self._planned = found

    def _without_cores(self, wants: Sequence[Want]) -> list[Fit]:
        found = optimum(self._free(wants, share=True), wants)
        assert found is not None, "the caller has counted the GPUs"
        return found

    def _free(self, wants: Sequence[Want], *, share: bool = False) -> Free:
        given = hand(self._free_cores, wants)
        return Free(
            topology=self.facts.topology,
            cores=given.cores,
            width=0 if share else given.width,
            down=given.down,
            gpus=tuple(self._free_gpus),
            ports=self._ports,
            keep=self._cores[0].cpus[0] if self._cores else None,
            mem_mib=free_memory(self.facts.topology, self._taken_mib),
            port_use=dict(self._port_use),
        )


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
        mem_nodes=place.mem_nodes,
        gpus=place.gpus,
        hca=place.hca,
        remark=place.remark,
    )


def _want(demand: Demand) -> Want:
    return Want(gpus=demand.gpus, cpus=demand.cores, mem_mib=demand.mem_mib)
