"""What conditions see of a node."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from exaslurm.core.facts import GpuFact, NodeFacts
from exaslurm.core.node_values import FACTS, conditions, kind_values, node_values, numa_local
from exaslurm.core.placement import Demand
from exaslurm.core.topology import Hca, HcaPort, NodeTopology, NumaNode


def demand(*, gpus: int = 0, cores: int = 1) -> Demand:
    return Demand(model="m", shard="a", gpus=gpus, cores=cores, mem_mib=1024, max_per_node=16)


def port(rate: float, state: str = "ACTIVE") -> HcaPort:
    return HcaPort(number=1, state=state, rate_gbps=rate, link_layer="InfiniBand")


NODE = NodeFacts(
    node="n1",
    het_group=1,
    order=0,
    address="10.0.0.1",
    agent_port=1,
    port_base=2,
    cpus=tuple(range(8)),
    cpus_granted=8,
    mem_mib=64 * 1024,
    gpus=tuple(
        GpuFact(visible_id=str(i), vendor="nvidia", numa=i // 2, mem_mib=80 * 1024 - i)
        for i in range(4)
    ),
    topology=NodeTopology(
        host="n1",
        arch="aarch64",
        numa=(
            NumaNode(index=0, kind="cpu", cpus=(0, 1, 2, 3), mem_mib=1024),
            NumaNode(index=1, kind="cpu", cpus=(4, 5, 6, 7), mem_mib=1024),
            NumaNode(index=2, kind="device", cpus=(), mem_mib=1024),
        ),
        hcas=(
            Hca(name="mlx5_0", fabric="infiniband", ports=(port(200.0), port(400.0, "DOWN"))),
            Hca(name="eth0", fabric="ethernet", ports=(port(800.0),)),
        ),
    ),
    switches=("spine", "leaf1"),
    switch="leaf1",
    features=("nvme", "big"),
    labels={"kind": "gpu", "nvme": "true", "gpu-type": "H100"},
    measures={"storage_read_ms": 1.5, "unheard_of": 3.0},
)


def test_everything_known() -> None:
    assert node_values(NODE, demand()) == {
        "arch": "aarch64",
        "cpus": 8.0,
        "fabric": {"infiniband", "ethernet"},
        "feature": {"nvme", "big"},
        "gpu_mem_gib": (80 * 1024 - 3) / 1024,
        "gpu_type": "H100",
        "gpu_vendor": "nvidia",
        "gpus": 4.0,
        "ib_gbps": 200.0,
        "kind": "gpu",
        "mem_gib": 64.0,
        "node": "n1",
        "numa": 2.0,
        "numa_local": True,
        "nvme": True,
        "storage_read_ms": 1.5,
        "switch": {"spine", "leaf1"},
    }


def test_what_nobody_knows_is_left_out() -> None:
    bare = dataclasses.replace(
        NODE, topology=NodeTopology(host="n1"), switches=(), switch=None, features=None,
        labels={}, measures={}, gpus=(),
    )  # fmt: skip
    found = node_values(bare, demand())
    assert not found.keys() & {"arch", "feature", "kind", "nvme", "switch", "storage_read_ms"}
    assert (found["ib_gbps"], found["gpus"], found["numa"]) == (0.0, 0.0, 1.0)
    assert set(found) <= set(FACTS)


def test_the_site_knows_which_ports_count() -> None:
    slow = dataclasses.replace(NODE, labels={"ib_gbps": "100"})
    assert node_values(slow, demand())["ib_gbps"] == 100.0


@pytest.mark.parametrize(
    ("gpus", "cores", "local"), [(2, 4, True), (3, 4, False), (2, 5, False), (0, 4, True)]
)
def test_numa_local(gpus: int, cores: int, local: bool) -> None:
    assert numa_local(NODE, demand(gpus=gpus, cores=cores)) is local


def test_gpus_that_may_be_anywhere() -> None:
    lost = dataclasses.replace(
        NODE, gpus=tuple(dataclasses.replace(gpu, numa=None) for gpu in NODE.gpus)
    )
    assert numa_local(lost, demand(gpus=1)) is None
    assert numa_local(lost, demand(gpus=0)) is True
    assert "numa_local" not in node_values(lost, demand(gpus=1))


def test_before_there_are_nodes() -> None:
    (condition,) = conditions(["kind == gpu and ib_gbps >= 100 and gpus >= 1"])
    assert condition.verdict(kind_values("gpu", gpus=4)) is None
    assert condition.verdict(kind_values("cpu", gpus=4)) is False
    assert condition.verdict(kind_values("gpu", gpus=0)) is False


def test_the_how_to_names_every_fact() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "howto" / "constraints.md"
    rows = re.findall(r"^\| `(\w+)` \| .* \| `(.+)` \|$", page.read_text(), re.MULTILINE)
    assert [name for name, _ in rows] == sorted(FACTS)
    for name, example in rows:
        (condition,) = conditions([example])
        assert condition.names() == {name}
