"""Recorded real machines: a replica for each GPU, and as many without as the NUMA nodes hold."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from exaslurm.bind.node import NodePlacer
from exaslurm.core.facts import GpuFact, NodeFacts
from exaslurm.core.placement import Demand
from exaslurm.core.ports import MAX_ENGINES
from exaslurm.core.topology import NodeTopology
from exaslurm.topo.nearness import nearest_hcas
from tests.topo.conftest import folder, roots, unpacked
from tests.topo.test_recorded import MACHINES, topology_of

__all__ = ["folder", "roots", "unpacked"]

NAMES = sorted(name for name, machine in MACHINES.items() if machine.cores)


def facts_of(topology: NodeTopology) -> NodeFacts:
    return NodeFacts(
        node="n1", het_group=1, order=0, address="10.0.0.1", agent_port=20010, port_base=20000,
        cpus=topology.cpus, cpus_granted=len(topology.cpus), mem_mib=65536, topology=topology,
        gpus=tuple(
            GpuFact(visible_id=str(i), vendor=gpu.vendor, pci=gpu.pci)
            for i, gpu in enumerate(topology.gpus)
        ),
    )  # fmt: skip


def demand(*, gpus: int, cores: int, topology: NodeTopology) -> Demand:
    threads = max(len(core.cpus) for core in topology.cores)
    return Demand(
        model="m", shard="a", gpus=gpus, cores=cores * threads, mem_mib=64, max_per_node=40
    )


@pytest.mark.parametrize("name", [name for name in NAMES if MACHINES[name].gpu_numa])
def test_each_gpu_with_a_core_and_the_port_beside_it(
    name: str,
    folder: Path,
    unpacked: dict[str, NodeTopology],
) -> None:
    topology = topology_of(name, folder, unpacked)
    asked = [demand(gpus=1, cores=1, topology=topology)] * len(topology.gpus)
    placer = NodePlacer(facts_of(topology), expected=asked)
    home = {cpu: core.numa for core in topology.cores for cpu in core.cpus}
    cpus: list[int] = []
    for number, gpu in enumerate(topology.gpus):
        place = placer.place(asked[number])
        assert place.gpus == (str(number),)
        assert place.pinned
        assert place.remark is None
        assert {home[cpu] for cpu in place.cores} == {gpu.numa}
        active = [hca for hca in topology.hcas if any(p.state == "ACTIVE" for p in hca.ports)]
        if near := {hca.name for hca in nearest_hcas(gpu, active)}:
            assert place.hca is None or place.hca.partition(":")[0] in near
        cpus += place.cores
    assert len(cpus) == len(set(cpus))


@pytest.mark.parametrize("name", NAMES)
def test_replicas_without_gpus_stay_in_one_numa_node(
    name: str,
    folder: Path,
    unpacked: dict[str, NodeTopology],
) -> None:
    topology = topology_of(name, folder, unpacked)
    widest = max(len(core.cpus) for core in topology.cores)
    room = Counter(core.numa for core in topology.cores if len(core.cpus) == widest)
    number = min(MAX_ENGINES, sum(count // 2 for count in room.values()))
    asked = [demand(gpus=0, cores=2, topology=topology)] * number
    placer = NodePlacer(facts_of(topology), expected=asked)
    home = {cpu: core.numa for core in topology.cores for cpu in core.cpus}
    for item in asked:
        place = placer.place(item)
        assert place.pinned
        assert place.remark is None
        assert len({home[cpu] for cpu in place.cores}) == 1
