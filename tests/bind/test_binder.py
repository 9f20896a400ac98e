"""Replicas on nodes: spread, cores, memory, GPUs, HCAs, ports, and what is refused."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest

from exaslurm.bind.binder import bind_cell, choose_node, replica_ids
from exaslurm.core.fabric import FabricPlan
from exaslurm.core.topology import Hca, HcaPort
from exaslurm.errors import BindingMismatch

Make = Any


def hca(name: str, *, numa: int | None = None, rate: float = 200.0, state: str = "ACTIVE") -> Hca:
    port = HcaPort(number=1, state=state, rate_gbps=rate, link_layer="InfiniBand")
    return Hca(name=name, fabric="infiniband", ports=(port,), numa=numa)


def test_ids_ports_and_addresses(model: Make, plan_of: Make, node: Make) -> None:
    plan = plan_of([model("m")], [("m", "a", 3)], nodes=2)
    cell = plan.cells[0]
    assert replica_ids(cell)[-1] == ("c000-r0002", "m", "a")
    binding = bind_cell(plan, cell, [node(0), node(1), node(0, group=0)])
    assert binding.plan_hash == plan.hash
    assert [(r.id, r.node, r.slot, r.port) for r in binding.replicas] == [
        ("c000-r0000", "n1000", 0, 20020),
        ("c000-r0001", "n1001", 0, 20020),
        ("c000-r0002", "n1000", 1, 20024),
    ]
    assert binding.replicas[0].address == "10.0.1.1"
    assert binding.notes == ()


def test_the_head_carries_no_replica_unless_it_is_a_worker(
    model: Make, plan_of: Make, node: Make
) -> None:
    plan = plan_of([model("m")], [("m", "a", 2)], nodes=1)
    nodes = [node(0, group=0), node(0)]
    assert {r.node for r in bind_cell(plan, plan.cells[0], nodes).replicas} == {"n1000"}
    both = plan_of([model("m")], [("m", "a", 2)], nodes=2, role="both")
    nodes = [node(0, group=0), node(1, group=0)]
    assert [r.node for r in bind_cell(both, both.cells[0], nodes).replicas] == ["n0000", "n0001"]


def test_spread_over_nodes_and_switches(model: Make, plan_of: Make, node: Make) -> None:
    plan = plan_of([model("m")], [("m", "a", 6)], nodes=4)
    nodes = [node(i, switch=f"leaf{i // 2}") for i in range(4)]
    binding = bind_cell(plan, plan.cells[0], nodes)
    assert [r.node for r in binding.replicas] == [
        "n1000",
        "n1002",
        "n1001",
        "n1003",
        "n1000",
        "n1002",
    ]


def test_a_shard_is_spread_though_others_fill_the_nodes(
    model: Make, plan_of: Make, node: Make
) -> None:
    plan = plan_of([model("m"), model("k")], [("m", "a", 2), ("k", "a", 4)], nodes=3)
    binding = bind_cell(plan, plan.cells[0], [node(i) for i in range(3)])
    for name in ("m", "k"):
        on = Counter(r.node for r in binding.replicas if r.model == name)
        assert max(on.values()) - min(on.values()) <= 1
        assert len(on) == min(3, sum(on.values()))


def test_cores_are_distinct_and_the_first_is_left_to_the_agent(
    model: Make, plan_of: Make, node: Make
) -> None:
    plan = plan_of([model("m", cores=5)], [("m", "a", 3)], nodes=1)
    binding = bind_cell(plan, plan.cells[0], [node(0)])
    cores = [core for r in binding.replicas for core in r.cores]
    assert sorted(cores) == list(range(1, 16))
    assert all(r.pinned for r in binding.replicas)
    # With one core more the first goes too.
    plan = plan_of([model("m", cores=8)], [("m", "a", 2)], nodes=1)
    binding = bind_cell(plan, plan.cells[0], [node(0)])
    assert sorted(core for r in binding.replicas for core in r.cores) == list(range(16))


def test_a_replica_stays_in_one_numa_node(model: Make, plan_of: Make, node: Make) -> None:
    plan = plan_of([model("m", cores=3)], [("m", "a", 4)], nodes=1)
    binding = bind_cell(plan, plan.cells[0], [node(0, numa=2)])
    where = [(r.mem_node, {core // 8 for core in r.cores}) for r in binding.replicas]
    assert where == [(0, {0}), (0, {0}), (1, {1}), (1, {1})]
    # The first core is the agent's.
    assert all(0 not in replica.cores for replica in binding.replicas)


def test_a_replica_over_two_numa_nodes_is_bound_to_no_memory(
    model: Make, plan_of: Make, node: Make
) -> None:
    plan = plan_of([model("m", cores=12)], [("m", "a", 1)], nodes=1)
    (replica,) = bind_cell(plan, plan.cells[0], [node(0, numa=2)]).replicas
    assert len(replica.cores) == 12
    assert replica.mem_node is None


def test_cores_and_hca_near_the_gpu(model: Make, plan_of: Make, node: Make) -> None:
    # As on machines whose GPUs count the other way round than their NUMA nodes.
    plan = plan_of([model("m", gpus=1, cores=3)], [("m", "a", 4)], nodes=1)
    facts = node(
        0,
        numa=4,
        gpus=4,
        gpu_numa=[3, 2, 1, 0],
        hcas=[hca(f"mlx5_{i}", numa=i) for i in range(4)],
    )
    binding = bind_cell(plan, plan.cells[0], [facts])
    assert [(r.gpus, r.mem_node, r.hca) for r in binding.replicas] == [
        (("0",), 3, "mlx5_3:1"),
        (("1",), 2, "mlx5_2:1"),
        (("2",), 1, "mlx5_1:1"),
        (("3",), 0, "mlx5_0:1"),
    ]
    assert binding.replicas[0].cores == (12, 13, 14)
    assert binding.replicas[3].cores == (1, 2, 3)


def test_gpus_of_a_replica_come_from_one_numa_node(model: Make, plan_of: Make, node: Make) -> None:
    plan = plan_of([model("m", gpus=2)], [("m", "a", 2)], nodes=1)
    facts = node(0, numa=2, gpus=4, gpu_numa=[0, 1, 0, 1])
    binding = bind_cell(plan, plan.cells[0], [facts])
    assert [r.gpus for r in binding.replicas] == [("0", "2"), ("1", "3")]
    small = plan_of([model("m", gpus=3)], [("m", "a", 1)], nodes=1)
    (replica,) = bind_cell(small, small.cells[0], [facts]).replicas
    assert replica.gpus == ("0", "1", "2")


def test_hcas_that_are_down_or_slow_are_not_used(model: Make, plan_of: Make, node: Make) -> None:
    plan = plan_of([model("m")], [("m", "a", 3)], nodes=1)
    hcas = [
        hca("mlx5_0", state="DOWN"),
        hca("mlx5_1"),
        hca("mlx5_2", rate=10.0),
        hca("mlx5_3"),
    ]
    binding = bind_cell(plan, plan.cells[0], [node(0, hcas=hcas)])
    assert [r.hca for r in binding.replicas] == ["mlx5_1:1", "mlx5_3:1", "mlx5_1:1"]
    binding = bind_cell(plan, plan.cells[0], [node(0, hcas=hcas[:1])])
    assert [r.hca for r in binding.replicas] == [None] * 3
    fabric = FabricPlan(hcas=("mlx5_[23]",))
    plan = dataclasses.replace(plan, node=dataclasses.replace(plan.node, fabric=fabric))
    binding = bind_cell(plan, plan.cells[0], [node(0, hcas=hcas)])
    assert [r.hca for r in binding.replicas] == ["mlx5_3:1"] * 3


@pytest.mark.parametrize(
    ("cpus", "granted", "reason"),
    [
        ((3,), 4, "Slurm granted 4 CPUs, the step may run on 1"),
        (tuple(range(16)), 4, "Slurm granted 4 of 16 CPUs without saying which"),
    ],
)
def test_where_nobody_says_which_cores_are_ours_all_are_shared(
    model: Make, plan_of: Make, node: Make, cpus: tuple[int, ...], granted: int, reason: str
) -> None:
    plan = plan_of([model("m", cores=2)], [("m", "a", 2)], nodes=1)
    binding = bind_cell(plan, plan.cells[0], [node(0, cpus=cpus, granted=granted, numa=1)])
    assert [(r.cores, r.pinned, r.mem_node) for r in binding.replicas] == [(cpus, False, None)] * 2
    assert binding.notes == (f"n1000: replicas share all its cores: {reason}",)


def test_on_one_machine_without_slurm_cores_are_shared_silently(
    model: Make, plan_of: Make, node: Make
) -> None:
    plan = plan_of([model("m", cores=1)], [("m", "a", 1)], nodes=1, role="both", layout="local")
    binding = bind_cell(plan, plan.cells[0], [node(0, group=0, granted=None)])
    assert (binding.replicas[0].pinned, binding.notes) == (False, ())


def test_fewer_nodes_than_planned_carry_more(model: Make, plan_of: Make, node: Make) -> None:
    plan = plan_of([model("m", cores=8)], [("m", "a", 3)], nodes=3)
    binding = bind_cell(plan, plan.cells[0], [node(1)])
    assert len(binding.replicas) == 3
    # Three times eight cores do not fit: all share.
    assert {(r.pinned, r.cores) for r in binding.replicas} == {(False, tuple(range(16)))}
    assert binding.notes == (
        "1 of 3 worker nodes are there",
        "n1001: replicas share cores or memory: it carries more than planned",
        "m:a may be lost with 1 node (n1001): its 3 replicas depend on 1 node, 3 are needed",
    )


def test_replicas_without_room_on_fewer_nodes_are_named(
    model: Make, plan_of: Make, node: Make
) -> None:
    plan = plan_of([model("m", gpus=4)], [("m", "a", 2)], nodes=2)
    binding = bind_cell(plan, plan.cells[0], [node(0, gpus=4)])
    assert [r.id for r in binding.replicas] == ["c000-r0000"]
    assert binding.notes == ("1 of 2 worker nodes are there", "c000-r0001 (m:a) has no place")


def test_all_nodes_there_and_yet_no_room(model: Make, plan_of: Make, node: Make) -> None:
    plan = plan_of([model("m", gpus=4)], [("m", "a", 2)], nodes=2)
    with pytest.raises(BindingMismatch) as caught:
        bind_cell(plan, plan.cells[0], [node(0, gpus=4), node(1, gpus=3)])
    assert str(caught.value) == (
        "cell c000: no place for c000-r0001 (m:a), which takes 4 GPUs and 1 cores, at most 16 on "
        "a node: n1000 has 4 GPUs of 4 asked, n1001 has 3 GPUs of 4 asked"
    )
    with pytest.raises(BindingMismatch, match="no worker node is there"):
        bind_cell(plan, plan.cells[0], [node(0, group=0)])
    with pytest.raises(BindingMismatch, match=r"c000-r0000 .* and 1 more"):
        bind_cell(plan, plan.cells[0], [node(0)])


def test_at_most_so_many_on_a_node(model: Make, plan_of: Make, node: Make) -> None:
    plan = plan_of([model("m", most=2)], [("m", "a", 3)], nodes=1)
    with pytest.raises(BindingMismatch, match="at most 2 on a node: n1000 has 16 CPUs"):
        bind_cell(plan, plan.cells[0], [node(0)])


def test_a_node_that_reports_twice(model: Make, plan_of: Make, node: Make) -> None:
    plan = plan_of([model("m")], [("m", "a", 1)], nodes=2)
    twin = dataclasses.replace(node(1), node="n1000")
    with pytest.raises(BindingMismatch, match="node n1000 reported twice"):
        bind_cell(plan, plan.cells[0], [node(0), twin])


class TestReplacement:
    """A replica that lost its node gets a place beside the others."""

    @pytest.fixture
    def case(self, model: Make, plan_of: Make, node: Make) -> tuple[Any, Any, list[Any]]:
        plan = plan_of([model("m", gpus=1, cores=3)], [("m", "a", 4)], nodes=3)
        nodes = [node(i, gpus=4, numa=2, gpu_numa=[0, 0, 1, 1]) for i in range(3)]
        return plan, bind_cell(plan, plan.cells[0], nodes), nodes

    def move(self, case: Any, replica: str, nodes: Any, **more: Any) -> Any:
        plan, binding, _ = case
        placed = [r for r in binding.replicas if r.id != replica]
        return choose_node(
            plan,
            plan.cells[0],
            replica=replica,
            model="m",
            shard="a",
            placed=placed,
            nodes=nodes,
            **more,
        )

    def test_goes_to_the_node_with_fewest(self, case: Any) -> None:
        _, binding, nodes = case
        assert Counter(r.node for r in binding.replicas)["n1000"] == 2
        moved = self.move(case, "c000-r0001", [nodes[0], nodes[2]])
        assert (moved.id, moved.node, moved.slot) == ("c000-r0001", "n1002", 1)
        other = next(r for r in binding.replicas if r.node == "n1002")
        assert not set(moved.gpus) & set(other.gpus)
        assert not set(moved.cores) & set(other.cores)
        assert moved.port != other.port

    def test_back_to_its_own_place(self, case: Any) -> None:
        _, binding, nodes = case
        assert self.move(case, "c000-r0001", nodes) == binding.replicas[1]

    def test_avoids_what_it_is_told_to(self, case: Any) -> None:
        _, _, nodes = case
        moved = self.move(case, "c000-r0001", nodes, avoid={"n1001"})
        assert moved.node == "n1002"
        with pytest.raises(BindingMismatch, match="no place for c000-r0001"):
            self.move(case, "c000-r0001", nodes, avoid={"n1000", "n1001", "n1002"})

    def test_shares_cores_where_none_are_left(self, model: Make, plan_of: Make, node: Make) -> None:
        plan = plan_of([model("m", cores=10)], [("m", "a", 2)], nodes=2)
        nodes = [node(0), node(1)]
        binding = bind_cell(plan, plan.cells[0], nodes)
        moved = self.move((plan, binding, nodes), "c000-r0001", nodes[:1])
        assert (moved.node, moved.pinned, moved.cores) == ("n1000", False, tuple(range(16)))
