"""The network between nodes: what a site says about it, what a node measures of it."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from exaslurm.core.topology import Fabric, Hca, HcaPort, NodeTopology

# NVIDIA's HDR and NDR devices count port_xmit_wait once for every 8 bytes that could have been
# sent (https://docs.nvidia.com/networking/display/ibdiagnetusermanualv213, "Congestion Assessment
# on InfiniBand Links"), Omni-Path in flit times, which are 8 bytes too.
XMIT_WAIT_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricPlan:
    """What the site says. ``hcas`` are shell-style patterns of the devices that engines may use
    (empty: all that are as fast as the fastest one). ``env`` goes to every engine on a GPU,
    ``env_multi_node`` only to engines that span nodes."""

    hcas: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    env_multi_node: Mapping[str, str] = field(default_factory=dict)
    xmit_wait_bytes: int = XMIT_WAIT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class PortFigures:
    """One port in the last ``interval_s``. None: nothing on this node counts it, or the counter
    is not to be trusted just now (``notes`` say why).

    ``congestion`` is the share (0..1) of the time in which the port had data to send and was not
    allowed to. Rates are per second; ``errors_per_s`` are damaged or lost packets and repairs of
    the link, ``retransmits_per_s`` what the transport had to send again, or saw out of order.
    """

    device: str
    port: int
    fabric: Fabric
    state: str
    rate_gbps: float
    interval_s: float
    congestion: float | None = None
    xmit_gbps: float | None = None
    rcv_gbps: float | None = None
    errors_per_s: float | None = None
    discards_per_s: float | None = None
    retransmits_per_s: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """``mlx5_0:1``."""
        return f"{self.device}:{self.port}"


def usable_ports(
    hcas: Sequence[Hca], patterns: Sequence[str] = ()
) -> tuple[tuple[Hca, HcaPort], ...]:
    """Active ports that engines may use, by name of the device and number.

    Without patterns those of the fastest kind that is there: RDMA before plain Ethernet, and not
    slower than half of the fastest one, so that a node's 25 Gbit/s port for storage is no HCA.
    """
    active = [
        (hca, port) for hca in hcas for port in hca.ports if port.state.upper().endswith("ACTIVE")
    ]
    if patterns:
        return tuple((hca, port) for hca, port in active if matches(hca, patterns))
    rdma = [pair for pair in active if pair[0].fabric != "ethernet"]
    active = rdma or active
    fastest = max((port.rate_gbps for _, port in active), default=0.0)
    return tuple(pair for pair in active if pair[1].rate_gbps >= fastest / 2)


def narrowed(topology: NodeTopology, patterns: Sequence[str]) -> NodeTopology:
    """A node without the network devices that the site's patterns leave out."""
    if not patterns:
        return topology
    return replace(topology, hcas=tuple(hca for hca in topology.hcas if matches(hca, patterns)))


def matches(hca: Hca, patterns: Sequence[str]) -> bool:
    """Whether a pattern names the device or one of its network interfaces."""
    return any(fnmatch.fnmatchcase(name, p) for p in patterns for name in names_of(hca))


def names_of(hca: Hca) -> tuple[str, ...]:
    """A device's own name and those of its network interfaces."""
    return (hca.name, *hca.interfaces)


def fabric_of(hcas: Sequence[Hca], patterns: Sequence[str] = ()) -> Fabric | None:
    """The fabric of the usable ports, None where there are none."""
    ports = usable_ports(hcas, patterns)
    return ports[0][0].fabric if ports else None
