"""Variables for the network, per kind of fabric."""

from __future__ import annotations

from typing import Any

import pytest

from exaslurm.core.fabric import FabricPlan
from exaslurm.core.plan import Device
from exaslurm.core.topology import Fabric, Hca, HcaPort
from exaslurm.engines.network import network_env


def hca(name: str, fabric: Fabric, *interfaces: str) -> Hca:
    port = HcaPort(number=1, state="ACTIVE", rate_gbps=200.0, link_layer="x")
    return Hca(name=name, fabric=fabric, ports=(port,), interfaces=interfaces)


NODE = (
    hca("cxi0", "slingshot", "hsn0"),
    hca("cxi1", "slingshot", "hsn1"),
    hca("ens1", "ethernet", "ens1"),
    hca("hfi1_0", "omnipath", "ib0"),
    hca("mlx5_0", "infiniband", "ib0"),
    hca("mlx5_1", "roce", "ens3"),
)


def env_of(device: Device, interface: str | None, *ports: str, **more: Any) -> dict[str, str]:
    env = network_env(device, "10.0.0.1", interface, ports=ports, hcas=NODE, **more)
    assert env.pop("VLLM_HOST_IP") == "10.0.0.1"
    assert env.pop("GLOO_SOCKET_IFNAME", None) == interface
    return env


@pytest.mark.parametrize(
    ("device", "interface", "ports", "expected"),
    [
        # InfiniBand, RoCE: verbs for NCCL and UCX, sockets on the cell's interface.
        ("cuda", "ib0", ["mlx5_0:1"],
         {"NCCL_SOCKET_IFNAME": "=ib0", "NCCL_IB_HCA": "=mlx5_0:1", "UCX_NET_DEVICES": "mlx5_0:1"}),
        # One GPU near each of two ports, and a second GPU near the first one again.
        ("rocm", "ib0", ["mlx5_0:1", "mlx5_1:1", "mlx5_0:1"],
         {"NCCL_SOCKET_IFNAME": "=ib0", "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1",
          "UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1"}),
        ("cuda", "ib0", ["hfi1_0:1"],
         {"NCCL_SOCKET_IFNAME": "=ib0", "NCCL_IB_HCA": "=hfi1_0:1"}),
        # A device of which only the name is known.
        ("cuda", None, ["bnxt_re0:1"],
         {"NCCL_IB_HCA": "=bnxt_re0:1", "UCX_NET_DEVICES": "bnxt_re0:1"}),
        # Slingshot has no verbs: libfabric is told the card, UCX the interface.
        ("cuda", "hsn0", ["cxi1:1"],
         {"NCCL_SOCKET_IFNAME": "=hsn0", "FI_CXI_DEVICE_NAME": "cxi1", "UCX_NET_DEVICES": "hsn0"}),
        ("xpu", "hsn0", ["cxi0:1", "cxi1:1"],
         {"FI_CXI_DEVICE_NAME": "cxi0,cxi1", "UCX_NET_DEVICES": "hsn0"}),
        # Ethernet only: sockets.
        ("cuda", "ens1", [], {"NCCL_SOCKET_IFNAME": "=ens1", "UCX_NET_DEVICES": "ens1"}),
        ("cuda", "ens1", ["ens1:1"], {"NCCL_SOCKET_IFNAME": "=ens1", "UCX_NET_DEVICES": "ens1"}),
        ("cuda", None, [], {}),
        # Engines on CPUs use Gloo and nothing else.
        ("cpu", "ib0", ["mlx5_0:1"], {}),
    ],
)  # fmt: skip
def test_each_fabric(
    device: Device, interface: str | None, ports: list[str], expected: dict[str, str]
) -> None:
    assert env_of(device, interface, *ports) == expected


SITE = FabricPlan(
    env={"NCCL_SOCKET_IFNAME": "hsn", "FI_CXI_RDZV_PROTO": "alt_read"},
    env_multi_node={"NCCL_NET": "AWS Libfabric"},
)


@pytest.mark.parametrize(("nodes", "more"), [(1, {}), (2, {"NCCL_NET": "AWS Libfabric"})])
def test_the_site_has_the_last_word(nodes: int, more: dict[str, str]) -> None:
    assert env_of("cuda", "hsn0", "cxi0:1", fabric=SITE, nodes=nodes) == {
        "NCCL_SOCKET_IFNAME": "hsn",
        "FI_CXI_RDZV_PROTO": "alt_read",
        "FI_CXI_DEVICE_NAME": "cxi0",
        "UCX_NET_DEVICES": "hsn0",
        **more,
    }


def test_what_is_for_gpus_is_not_for_cpus() -> None:
    assert env_of("cpu", "hsn0", "cxi0:1", fabric=SITE, nodes=2) == {}
