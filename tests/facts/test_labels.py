"""Strings for Ray."""

from __future__ import annotations

import re

import pytest

from exaslurm.core.facts import GpuFact
from exaslurm.core.topology import Fabric, Hca, HcaPort, NodeTopology
from exaslurm.facts.labels import fastest_gbps, label_value, labels


def hca(name: str, fabric: Fabric, rate_gbps: float, state: str = "ACTIVE") -> Hca:
    port = HcaPort(number=1, state=state, rate_gbps=rate_gbps, link_layer="x")
    return Hca(name=name, fabric=fabric, ports=(port,))


CLUSTER = NodeTopology(
    host="n1",
    arch="aarch64",
    hcas=(
        hca("cxi0", "slingshot", 200.0),
        hca("cxi1", "slingshot", 200.0),
        hca("mlx5_0", "infiniband", 400.0, "DOWN"),
        hca("ens1", "ethernet", 800.0),
    ),
)


def test_a_node_of_a_cluster() -> None:
    gpu = GpuFact(visible_id="0", vendor="nvidia", name="NVIDIA GH200 120GB")
    assert labels("gh", CLUSTER, [gpu], "leaf 7", local=True) == {
        "kind": "gh", "arch": "aarch64", "numa": "1", "ib_gbps": "200", "fabric": "slingshot",
        "nvme": "true", "switch": "leaf-7", "gpu-vendor": "nvidia",
        "gpu-type": "NVIDIA-GH200-120GB",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("topology", "hcas", "gbps", "fabric"),
    [
        (CLUSTER, ("ens*",), 0.0, "ethernet"),
        (CLUSTER, ("cxi*",), 200.0, "slingshot"),
        (CLUSTER, ("mlx5_*",), 0.0, "ethernet"),
        (NodeTopology(host="n"), (), 0.0, "ethernet"),
    ],
)
def test_the_site_says_which_devices_count(
    topology: NodeTopology, hcas: tuple[str, ...], gbps: float, fabric: str
) -> None:
    assert fastest_gbps(topology, hcas) == gbps
    found = labels("k", topology, [], None, local=False, hcas=hcas)
    assert (found["ib_gbps"], found["fabric"], found["nvme"]) == (f"{gbps:g}", fabric, "false")
    assert not {"switch", "gpu-type", "gpu-vendor"} & set(found)


@pytest.mark.parametrize("text", ["NVIDIA A100-SXM4-80GB", "x" * 99, "(odd)", "ü", ""])
def test_labels_have_rays_form(text: str) -> None:
    assert re.fullmatch(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?", label_value(text))
