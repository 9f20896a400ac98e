"""Nodes of real centres: the placement is the one that their own pages give."""

from __future__ import annotations

import pytest

from exaslurm.bind.node import NodePlacer
from exaslurm.core.facts import GpuFact, NodeFacts
from exaslurm.core.placement import Demand
from exaslurm.core.topology import Gpu
from tests.tools import nodefiles
from tests.tools.nodefiles import NodeFile

VARIABLES = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "ROCR_VISIBLE_DEVICES"}


def facts_of(file: NodeFile, cpus: tuple[int, ...], gpus: tuple[Gpu, ...]) -> NodeFacts:
    return NodeFacts(
        node="n0",
        het_group=1,
        order=0,
        address="10.0.0.1",
        agent_port=20010,
        port_base=20000,
        cpus=cpus,
        cpus_granted=len(cpus),
        mem_mib=sum(node.mem_mib for node in file.topology.memory_nodes),
        gpus=tuple(
            GpuFact(visible_id=str(place), vendor=gpu.vendor, pci=gpu.pci, numa=gpu.numa)
            for place, gpu in enumerate(gpus)
        ),
        topology=file.topology,
    )


def demand_of(file: NodeFile, threads: int, replicas: int) -> Demand:
    mem_mib = sum(node.mem_mib for node in file.topology.memory_nodes)
    return Demand(
        model="m",
        shard="a",
        gpus=file.gpus_per_replica,
        cores=file.cores_per_replica * threads,
        # What pages say of memory is less than the sum of the NUMA nodes.
        mem_mib=mem_mib * 15 // 16 // replicas,
        max_per_node=16,
    )


@pytest.mark.parametrize("granted", ["all", "first threads", "less the reserved", "by reserving"])
@pytest.mark.parametrize("name", nodefiles.names())
def test_the_placement_is_the_published_one(name: str, granted: str) -> None:
    """Whatever of the threads and the reserved cores Slurm hands out."""
    file = nodefiles.load(name)
    topology = file.topology
    cpus = [cpu for cpu in topology.cpus if cpu not in file.reserved]
    if granted == "first threads":
        cpus = [core.cpus[0] for core in topology.cores if core.cpus[0] in cpus]
    if granted in ("all", "by reserving"):
        cpus = list(topology.cpus)
    if granted == "all" and file.reserved:
        pytest.skip("the page's own placement is without the reserved cores")
    by_index = {gpu.index: gpu for gpu in topology.gpus}
    facts = facts_of(file, tuple(cpus), tuple(by_index[i] for i in sorted(by_index)))
    threads = 1 if granted == "first threads" else len(topology.cores[0].cpus)
    demands = [demand_of(file, threads, len(file.expected))] * len(file.expected)
    reserved = len(file.reserved) if granted == "by reserving" else 0
    placer = NodePlacer(facts, expected=demands, reserved=reserved)
    places = {place.gpus: place for place in map(placer.place, demands)}
    assert len(places) == len(file.expected)
    core_of = {cpu: core for core in topology.cores for cpu in core.cpus}
    for row in file.expected:
        place = places[tuple(map(str, row.gpus))]
        assert place.pinned
        assert place.remark is None
        assert not set(place.cores) & set(file.reserved)
        first = [cpu for cpu in place.cores if cpu == core_of[cpu].cpus[0]]
        # Whole cores: each with all of its threads that were granted.
        assert set(place.cores) == {
            cpu for core in map(core_of.get, first) if core for cpu in core.cpus if cpu in cpus
        }
        if row.first_cpu is not None:
            assert min(place.cores) == row.first_cpu
        if row.cores is not None:
            assert first == list(row.cores)
        if row.numa is not None:
            assert place.mem_nodes == ((row.numa,) if len(topology.memory_nodes) > 1 else ())
        if row.hca is not None:
            assert place.hca is not None
            assert row.hca == place.hca.partition(":")[0]


@pytest.mark.parametrize("name", nodefiles.names())
def test_the_placement_of_a_part_is_near_too(name: str) -> None:
    """A step that got the last GPU alone, which is number 0 in it."""
    file = nodefiles.load(name)
    row = max(file.expected, key=lambda row: row.gpus)
    cpus = tuple(cpu for cpu in file.topology.cpus if cpu not in file.reserved)
    gpus = tuple(gpu for gpu in file.topology.gpus if gpu.index in row.gpus)
    placer = NodePlacer(facts_of(file, cpus, gpus))
    place = placer.place(demand_of(file, len(file.topology.cores[0].cpus), len(file.expected)))
    assert place.gpus == tuple(str(i) for i in range(len(gpus)))
    assert place.remark is None
    if row.numa is not None and len(file.topology.memory_nodes) > 1:
        assert place.mem_nodes == (row.numa,)
