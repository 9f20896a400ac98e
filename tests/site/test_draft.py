"""A site config written from what Slurm says."""

from __future__ import annotations

from pathlib import Path

import pytest

from exaslurm.core.topology import Core, Gpu, Hca, HcaPort, NodeTopology, NumaNode
from exaslurm.site.draft import draft
from exaslurm.site.load import load_site
from exaslurm.site.model import Site
from exaslurm.slurm.inventory import Inventory, SlurmNode, SlurmPartition

CONFIG = {
    "ClusterName": "big",
    "SLURM_VERSION": "24.05.3",
    "SchedulerType": "sched/backfill",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_CORE_MEMORY",
    "GresTypes": "gpu,craynetwork",
    "JobSubmitPlugins": "lua",
    "AccountingStorageEnforce": "associations,limits,qos",
}


def node(name: str, **changes: object) -> SlurmNode:
    values: dict[str, object] = {
        "name": name,
        "cpus": 128,
        "usable_cpus": 112,
        "threads_per_core": 2,
        "mem_mib": 515000,
        "gpus": (("a100", 4),),
        "features": ("gpu", "nvme"),
        "partitions": ("gpu", "all"),
        "state": "IDLE",
    }
    return SlurmNode(**{**values, **changes})  # type: ignore[arg-type]


def partition(name: str, **changes: object) -> SlurmPartition:
    values: dict[str, object] = {
        "name": name,
        "is_default": False,
        "max_nodes": None,
        "min_nodes": 0,
        "max_time": "1-00:00:00",
        "exclusive": False,
        "is_up": True,
    }
    return SlurmPartition(**{**values, **changes})  # type: ignore[arg-type]


def cpu(name: str, **changes: object) -> SlurmNode:
    values = {"gpus": (), "features": ("cpu",), "partitions": ("all",), "usable_cpus": 128}
    return node(name, **{**values, **changes})


def loaded(text: str, tmp_path: Path, name: str = "big") -> Site:
    (tmp_path / f"{name}.yaml").write_text(text)
    return load_site(name, {"EXASLURM_SITE_CONFIG": str(tmp_path), "HOME": str(tmp_path)})


def inventory(*nodes: SlurmNode, config: dict[str, str] | None = None) -> Inventory:
    return Inventory(
        nodes=nodes,
        partitions=(
            partition("all", is_default=True, max_time=None),
            partition("gpu", max_nodes=64, exclusive=True),
            partition("old", is_up=False),
        ),
        config=CONFIG | (config or {}),
    )


def test_kinds_partitions_and_settings(tmp_path: Path) -> None:
    nodes = [node(f"g{i}", mem_mib=515000 + i, partitions=("gpu",)) for i in range(3)]
    text = draft("big", inventory(*nodes, cpu("c1"), cpu("c2"), cpu("x", state="FUTURE")))
    site = loaded(text, tmp_path)
    gpu, plain = site.node_kinds["a100"], site.node_kinds["cpu"]
    assert (gpu.partition, gpu.count, gpu.cpus, gpu.reserved_cores) == ("gpu", 3, 128, 16)
    assert (gpu.gpus, gpu.gpu_type, gpu.device, gpu.exclusive) == (4, "a100", "cuda", True)
    assert (gpu.mem_gib, gpu.features) == (502, ("gpu", "nvme"))
    assert (plain.partition, plain.count, plain.known_gpus) == ("all", 2, 0)
    assert (site.workers.kind, site.head.kind) == ("a100", "cpu")
    assert site.partitions["gpu"].max_nodes == 64
    assert site.partitions["all"].max_time is None
    assert (site.slurm.version, site.slurm.gres, site.slurm.hetjobs) == ("24.05.3", "gres", True)
    assert "slurm.hetjobs" in site.unverified
    assert "submit filter (lua)" in text
    assert "mandatory_directives: [account]" in text
    assert "cpus: 128  # 2 threads a core" in text


def test_a_cluster_without_gres_or_backfill(tmp_path: Path) -> None:
    config = {"GresTypes": "(null)", "SchedulerType": "sched/builtin", "SelectTypeParameters": "-"}
    site = loaded(draft("big", inventory(cpu("c1"), config=config)), tmp_path)
    assert (site.slurm.gres, site.slurm.hetjobs) == ("none", False)
    assert site.workers.kind == site.head.kind == "cpu"


def test_kinds_that_only_a_feature_tells_apart(tmp_path: Path) -> None:
    wide = ("gpu", "hbm80g")
    nodes = [
        node("g1"),
        node("g2"),
        node("g3", features=wide, mem_mib=900000),
        node("h1", gpus=(("nvidia_gh200/120", 4),)),
        cpu("c1"),
    ]
    site = loaded(draft("big", inventory(*nodes)), tmp_path)
    assert site.node_kinds["a100"].constraint == "nvme"
    assert site.node_kinds["a100-2"].constraint == "hbm80g"
    assert site.node_kinds["nvidia_gh200-120"].constraint is None
    assert site.node_kinds["cpu"].constraint is None


def test_what_a_node_shows(tmp_path: Path) -> None:
    numa = [
        NumaNode(index=i, kind="cpu", cpus=tuple(range(64 * i, 64 * i + 64)), mem_mib=1)
        for i in range(2)
    ]
    port = HcaPort(number=1, state="ACTIVE", rate_gbps=200.0, link_layer="Ethernet")
    slow = HcaPort(number=1, state="ACTIVE", rate_gbps=25.0, link_layer="Ethernet")
    topology = NodeTopology(
        host="g1.cluster",
        cores=(Core(cpus=(0,), package=0, numa=0),),
        numa=tuple(numa),
        gpus=(Gpu(index=0, vendor="amd", numa=1), Gpu(index=1, vendor="amd", numa=0)),
        hcas=(
            Hca(name="eth0", fabric="ethernet", ports=(slow,), interfaces=("eth0",)),
            Hca(name="cxi0", fabric="slingshot", ports=(port,), interfaces=("hsn0",)),
        ),
    )
    text = draft("big", inventory(node("g1", gpus=(("", 2),)), cpu("c1")), [topology])
    site = loaded(text, tmp_path)
    assert (site.interface, site.node_kinds["gpu"].device) == ("hsn0", "rocm")
    assert site.node_kinds["gpu"].gpu_cpus == ("64-127", "0-63")
    assert "interface" not in site.unverified


def test_odd_words_are_quoted(tmp_path: Path) -> None:
    nodes = node("g1", features=("yes", "1:2", "a&b"), partitions=("on",))
    stock = Inventory(nodes=(nodes,), partitions=(partition("on"),), config=CONFIG)
    site = loaded(draft("big", stock), tmp_path)
    assert site.node_kinds["a100"].features == ("yes", "1:2", "a&b")
    assert list(site.partitions) == ["on"]


def test_a_cluster_without_nodes() -> None:
    with pytest.raises(ValueError, match="no node with processors"):
        draft("big", inventory())
