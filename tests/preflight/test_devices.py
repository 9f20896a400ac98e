"""What is said of GPUs, ports and NUMA nodes that a test cannot have."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from exaslurm.core.topology import Gpu, Hca, HcaPort, NodeTopology, NumaNode
from exaslurm.preflight import devices
from exaslurm.preflight.host import Host

HOST = Host(name="n1", root=Path("/nonexistent"), recorded=True)


def gpu(index: int, name: str = "A100", numa: int | None = 0) -> Gpu:
    return Gpu(index=index, vendor="nvidia", name=name, numa=numa, pci=f"0000:0{index}:00.0")


def hca(name: str, *ports: HcaPort, fabric: str = "infiniband") -> Hca:
    return Hca(name=name, fabric=fabric, ports=ports)  # type: ignore[arg-type]


def port(state: str = "ACTIVE", rate: float = 200.0, number: int = 1) -> HcaPort:
    return HcaPort(number=number, state=state, rate_gbps=rate, link_layer="InfiniBand")


def node(**parts: object) -> NodeTopology:
    return NodeTopology(host="n1", **parts)  # type: ignore[arg-type]


def test_a_gpu_that_fell_off_the_bus() -> None:
    topology = node(gpus=(gpu(0), gpu(1), gpu(2)))
    found = {check.id: check for check in devices.check_gpus(HOST, topology, 4)}
    assert (found["gpu.count"].outcome, found["gpu.count"].value) == ("fail", "3 of 4")
    assert found["gpu.driver"].outcome == "warn"


def test_no_gpu_where_some_are_expected() -> None:
    (found,) = devices.check_gpus(HOST, node(), 4)
    assert (found.outcome, found.value) == ("fail", "0 of 4")


def test_no_gpu_where_none_are_expected() -> None:
    assert [check.outcome for check in devices.check_gpus(HOST, node(), None)] == ["skip"]
    assert [check.outcome for check in devices.check_gpus(HOST, node(), 0)] == ["skip"]


def test_gpus_in_another_order_than_the_site_says() -> None:
    near = {0: tuple(range(8, 16)), 1: tuple(range(8))}
    gpus = tuple(dataclasses.replace(gpu(index), cpus=cpus) for index, cpus in near.items())
    topology = node(gpus=gpus)
    (good,) = devices.check_gpu_order(topology, ("9-15", "1-7"))
    assert (good.id, good.outcome) == ("gpu.order", "pass")
    (bad,) = devices.check_gpu_order(topology, ("0-7", "0-7"))
    assert (bad.outcome, bad.value) == ("warn", "GPU 0 is near 8-15, not 0-7")
    assert list(devices.check_gpu_order(topology, ())) == []
    assert list(devices.check_gpu_order(node(), ("0-7",))) == []


def test_two_models_in_a_node() -> None:
    topology = node(gpus=(gpu(0), gpu(1, "H100")))
    found = {check.id: check for check in devices.check_gpus(HOST, topology, 2)}
    assert found["gpu.model"].value == "1 x A100, 1 x H100"


def test_the_second_port_of_a_card_is_often_not_wired() -> None:
    topology = node(hcas=(hca("mlx5_0", port()), hca("mlx5_1", port("DOWN"))))
    found = [(c.id, c.subject, c.outcome) for c in devices.check_fabric(HOST, topology, ())]
    assert ("ib.state", "mlx5_1:1", "warn") in found
    assert ("ib.state", "mlx5_0:1", "pass") in found


def test_a_device_that_the_site_names_must_be_up() -> None:
    topology = node(hcas=(hca("mlx5_0", port()), hca("mlx5_1", port("DOWN")), hca("mlx5_9")))
    found = devices.check_fabric(HOST, topology, ("mlx5_[0-3]", "hsn*"))
    bad = [(c.id, c.subject, c.value) for c in found if c.outcome == "fail"]
    assert bad == [
        ("ib.state", "hsn*", "there is no such device"),
        ("ib.state", "mlx5_1:1", "DOWN"),
    ]


def test_a_slower_port_is_a_warning() -> None:
    topology = node(hcas=(hca("mlx5_0", port()), hca("mlx5_1", port(rate=100.0))))
    (slow,) = [c for c in devices.check_fabric(HOST, topology, ()) if c.outcome == "warn"]
    assert slow.value == "100 Gb/s; others have 200 Gb/s"


def test_ethernet_alone_is_no_fabric() -> None:
    topology = node(hcas=(hca("eth0", port(), fabric="ethernet"),))
    assert [check.outcome for check in devices.check_fabric(HOST, topology, ())] == ["skip"]
    assert not devices.is_rdma(topology)
    assert devices.is_rdma(node(hcas=(hca("mlx5_0", port()),)))


def test_memory_of_gpus_is_no_memory_of_cpus() -> None:
    nodes = (
        NumaNode(index=0, kind="cpu", cpus=(0, 1), mem_mib=1000),
        NumaNode(index=4, kind="device", cpus=(), mem_mib=96000),
    )
    assert devices.check_numa(node(numa=nodes)).outcome == "pass"


def test_half_the_memory_is_gone() -> None:
    nodes = (
        NumaNode(index=0, kind="cpu", cpus=(0,), mem_mib=1000),
        NumaNode(index=1, kind="cpu", cpus=(1,), mem_mib=400),
    )
    assert devices.check_numa(node(numa=nodes)).outcome == "warn"
