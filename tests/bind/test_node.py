"""What a node hands out: whole cores, what the site keeps, what Slurm did not grant."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from exaslurm.bind.binder import bind_cell
from exaslurm.bind.grant import Hand, granted_cores, hand, reserved_cpus
from exaslurm.bind.node import NodePlacer, floats, room_of
from exaslurm.bind.parts import Free, Want
from exaslurm.core.facts import GpuFact, NodeFacts
from exaslurm.core.placement import Demand
from exaslurm.core.topology import Core, Gpu, Hca, HcaPort, NodeTopology, NumaNode

Make = Any

# Two NUMA nodes of four cores with two threads each, two L3 caches in each; CPU n and n + 8 are the
# threads of core n.
NODE = NodeTopology(
    host="n",
    cores=tuple(Core(cpus=(n, n + 8), package=0, numa=n // 4, l3=n // 2) for n in range(8)),
    numa=tuple(
        NumaNode(index=i, kind="cpu", mem_mib=8192, distances=(10, 20) if i == 0 else (20, 10),
                 cpus=tuple(cpu for n in range(4 * i, 4 * i + 4) for cpu in (n, n + 8)))
        for i in range(2)
    ),
    gpus=tuple(
        Gpu(index=i, vendor="nvidia", numa=1 - i // 2, pci=f"0000:0{i}:00.0") for i in range(4)
    ),
    hcas=tuple(
        Hca(name=f"mlx5_{i}", fabric="infiniband", numa=i,
            ports=(HcaPort(number=1, state="ACTIVE", rate_gbps=200, link_layer="InfiniBand"),))
        for i in range(2)
    ),
)  # fmt: skip


def facts(cpus: Sequence[int] = range(16), gpus: Sequence[int] = range(4)) -> NodeFacts:
    """The visible ids begin at 0, as in a step with its own devices."""
    return NodeFacts(
        node="n1", het_group=1, order=0, address="10.0.0.1", agent_port=20010, port_base=20000,
        cpus=tuple(cpus), cpus_granted=len(cpus), mem_mib=16384, topology=NODE,
        gpus=tuple(
            GpuFact(visible_id=str(place), vendor="nvidia", pci=f"0000:0{i}:00.0")
            for place, i in enumerate(gpus)
        ),
    )  # fmt: skip


def demand(*, gpus: int = 0, cores: int = 1, mem_mib: int = 100) -> Demand:
    return Demand(model="m", shard="a", gpus=gpus, cores=cores, mem_mib=mem_mib, max_per_node=16)


def test_a_core_goes_with_all_its_threads() -> None:
    placer = NodePlacer(facts(), expected=[demand(cores=3)] * 4)
    places = [placer.place(demand(cores=3)) for _ in range(4)]
    # Each beside a cache of its own.
    assert [place.cores for place in places] == [
        (0, 1, 8, 9), (2, 3, 10, 11), (4, 5, 12, 13), (6, 7, 14, 15),
    ]  # fmt: skip
    assert all(place.pinned for place in places)


def test_enough_threads_and_too_few_cores_is_said(model: Make, plan_of: Make) -> None:
    plan = plan_of([model("m", cores=1)], [("m", "a", 9)], nodes=1)
    binding = bind_cell(plan, plan.cells[0], [facts()])
    assert not any(replica.pinned for replica in binding.replicas)
    assert binding.notes[0] == (
        "n1: replicas share all its cores: no two of them may be on one core, and 8 cores with 16 "
        "threads are too few for 9 of them"
    )


def test_what_the_site_keeps_stays_free() -> None:
    # Two CPUs a cache: the first core of each of four.
    assert reserved_cpus(NODE, range(16), 8) == (0, 2, 4, 6, 8, 10, 12, 14)
    assert reserved_cpus(NODE, range(16), 4) == (0, 2, 8, 10)
    assert reserved_cpus(NODE, range(16), 1) == ()
    # Slurm has kept them back already, or gave only a part of the node.
    assert reserved_cpus(NODE, [1, 3, 5, 7, 9, 11, 13, 15], 8) == ()
    placer = NodePlacer(facts(), reserved=8)
    cpus = [cpu for _ in range(4) for cpu in placer.place(demand(cores=2)).cores]
    assert sorted(cpus) == [1, 3, 5, 7, 9, 11, 13, 15]
    assert not placer.place(demand()).pinned


def test_cores_of_which_some_threads_are_missing_come_last() -> None:
    cores = granted_cores(NODE, [0, 8, 1, 9, 2, 3])
    assert hand(cores, [Want(gpus=0, cpus=4, mem_mib=0)]) == Hand(cores[:2], 2, False)
    assert hand(cores, [Want(gpus=0, cpus=2, mem_mib=0)] * 2) == Hand(cores[:2], 2, False)
    # With all of them, each counts for one.
    assert hand(cores, [Want(gpus=0, cpus=2, mem_mib=0)] * 3) == Hand(cores, 1, False)


def test_parts_of_cores_are_rounded_down_where_up_is_too_much() -> None:
    placer = NodePlacer(facts(), expected=[demand(cores=5)] * 3)
    places = [placer.place(demand(cores=5)) for _ in range(3)]
    assert [len(place.cores) for place in places] == [4, 4, 4]
    assert all(place.pinned for place in places)
    assert places[0].remark == "4 of 5 CPUs, for cores are given whole"


def test_the_last_core_is_left_where_parts_of_cores_are_little() -> None:
    """As 31 CPUs for each of four replicas on 64 cores of two threads, by an equal share."""
    cores = tuple(Core(cpus=(n, n + 64), package=0, numa=0) for n in range(64))

    def each(cpus: int, replicas: int = 4) -> Hand:
        return hand(cores, [Want(gpus=0, cpus=cpus, mem_mib=0)] * replicas)

    assert each(31) == Hand(cores, 2, True)
    assert each(32) == Hand(cores, 2, False)  # all were asked for
    assert each(29) == Hand(cores, 2, False)  # some are left all the same
    assert each(7, 16) == Hand(cores, 2, False)  # would be a seventh
    place = Want(gpus=0, cpus=31, mem_mib=0)
    assert Free(topology=NODE, cores=cores, width=2, down=True).cores_of(place) == 15


def test_near_its_gpu_by_the_numbers_of_the_step() -> None:
    placer = NodePlacer(facts(gpus=(3, 0)), expected=[demand(gpus=1, cores=4)] * 2)
    one, two = (placer.place(demand(gpus=1, cores=4)) for _ in range(2))
    # GPU 3 of the node, number 0 of the step, is at NUMA node 0.
    assert (one.gpus, one.mem_nodes, one.hca) == (("0",), (0,), "mlx5_0:1")
    assert (two.gpus, two.mem_nodes, two.hca) == (("1",), (1,), "mlx5_1:1")
    assert one.cores == (2, 3, 10, 11)
    assert two.cores == (4, 5, 12, 13)


def test_ports_of_all_gpus_of_a_replica() -> None:
    place = NodePlacer(facts()).place(demand(gpus=4, cores=14))
    assert place.gpus == ("0", "1", "2", "3")
    assert place.hca == "mlx5_1:1,mlx5_0:1"
    assert place.mem_nodes == (0, 1)


def test_what_is_far_is_said(model: Make, plan_of: Make) -> None:
    """GPUs 0 and 1 are at NUMA node 1, which has four cores."""
    plan = plan_of([model("m", gpus=1, cores=6)], [("m", "a", 2)], nodes=1)
    binding = bind_cell(plan, plan.cells[0], [facts(gpus=(0, 1))])
    one, two = binding.replicas
    assert (len(one.cores), one.remark) == (6, None)
    assert two.remark == "2 of 3 cores are not in the NUMA node of its GPU"
    assert two.mem_nodes == (0, 1)
    assert binding.notes[0] == f"n1: {two.id}: {two.remark}"


def test_memory_that_does_not_fit_beside_its_cores() -> None:
    asked = [demand(cores=2, mem_mib=6000), demand(cores=2, mem_mib=6000)]
    placer = NodePlacer(facts(range(4)), expected=asked)  # cores of NUMA node 0 alone
    one, two = (placer.place(item) for item in asked)
    assert (one.mem_nodes, one.remark) == ((0,), None)
    assert two.mem_nodes == (0, 1)
    assert two.remark == "some of its memory is in NUMA node 1, its cores are not"


def test_replicas_that_came_before_keep_what_they_have(model: Make, plan_of: Make) -> None:
    plan = plan_of([model("m", gpus=1, cores=2)], [("m", "a", 3)], nodes=1)
    first = bind_cell(plan, plan.cells[0], [facts()]).replicas
    placer = NodePlacer(facts())
    for replica in first:
        placer.taken(replica, 1024)
    place = placer.place(demand(gpus=1, cores=2))
    assert place.gpus == tuple({"0", "1", "2", "3"} - {gpu for r in first for gpu in r.gpus})
    assert not set(place.cores) & {cpu for r in first for cpu in r.cores}
    assert place.slot == 3


def test_one_thread_of_each_core_where_slurm_counts_all() -> None:
    one_each = dataclasses.replace(facts(range(8)), cpus_granted=16)
    assert floats(one_each) is None
    assert room_of(one_each, 0).cores == 8
    assert NodePlacer(one_each).place(demand(cores=2)).cores == (2, 3)
    told_more = dataclasses.replace(facts(range(8)), cpus_granted=32)
    assert floats(told_more) == "Slurm granted 32 CPUs, the step may run on 8"
    assert room_of(told_more, 0).cores == 32
