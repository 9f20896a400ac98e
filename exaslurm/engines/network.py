"""Environment that keeps an engine's own connections on the right network, per kind of fabric.

* NCCL and RCCL: ``NCCL_SOCKET_IFNAME`` and ``NCCL_IB_HCA`` are prefixes unless they begin with
  ``=`` (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html).
* UCX, which moves KV caches between engines (NIXL): ``UCX_NET_DEVICES``, such as ``mlx5_0:1`` or
  ``eth0`` (https://docs.vllm.ai/en/stable/features/nixl_connector_usage/). It knows no Slingshot
  (https://docs.cscs.ch/software/communication/libfabric), so there it gets the interface.
* libfabric on Slingshot: ``FI_CXI_DEVICE_NAME``, such as ``cxi0,cxi1`` (fi_cxi(7)). Which plug-in
  of NCCL speaks libfabric, and how it is tuned, the site says: without that plug-in, or with
  another version of it, the same values stop an engine from starting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from exaslurm.core.fabric import FabricPlan
from exaslurm.core.plan import Device
from exaslurm.core.topology import Hca


def network_env(
    device: Device,
    address: str,
    interface: str | None,
    *,
    ports: Sequence[str] = (),
    hcas: Sequence[Hca] = (),
    fabric: FabricPlan | None = None,
    nodes: int = 1,
) -> dict[str, str]:
    """Variables for an engine at ``address``, on ``interface`` (None: unknown).

    ``ports`` are the network ports of its GPUs (``mlx5_0:1``), nearest ones, ``hcas`` the node's
    devices; ``nodes`` is the number of nodes that the engine spans.
    """
    env = {"VLLM_HOST_IP": address}
    if interface is not None:
        env["GLOO_SOCKET_IFNAME"] = interface
    if device == "cpu":
        return env
    if device in ("cuda", "rocm") and interface is not None:
        env["NCCL_SOCKET_IFNAME"] = f"={interface}"
    env.update(_port_env(device, interface, list(dict.fromkeys(ports)), hcas))
    if fabric is not None:
        env.update(fabric.env)
        if nodes > 1:
            env.update(fabric.env_multi_node)
    return env


def _port_env(
    device: Device, interface: str | None, ports: Sequence[str], hcas: Sequence[Hca]
) -> Mapping[str, str]:
    known = {hca.name: hca for hca in hcas}
    names = [port.partition(":")[0] for port in ports]
    fabrics = {known[name].fabric for name in names if name in known}
    if "slingshot" in fabrics:
        cards = [name for name in names if name.startswith("cxi")]
        found = {"FI_CXI_DEVICE_NAME": ",".join(dict.fromkeys(cards))} if cards else {}
        return found | ({"UCX_NET_DEVICES": interface} if interface is not None else {})
    if not ports or "ethernet" in fabrics:
        return {} if interface is None else {"UCX_NET_DEVICES": interface}
    # Omni-Path: which of its ways is the better one is left to UCX.
    env = {} if "omnipath" in fabrics else {"UCX_NET_DEVICES": ",".join(ports)}
    if device in ("cuda", "rocm"):
        env["NCCL_IB_HCA"] = "=" + ",".join(ports)
    return env
