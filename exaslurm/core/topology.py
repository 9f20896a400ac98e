"""What is near what inside a node: cores, memory, GPUs, network and storage devices.

One value per node, whichever source it was read from (hwloc XML, sysfs, NCCL or RCCL XML, the
vendors' libraries). Indexes are the kernel's own (``os_index`` in hwloc), PCI addresses are
``dddd:bb:dd.f`` in lower case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# cpu: memory of a socket; device: memory of a GPU that the kernel shows as a NUMA node (GH200,
# NVIDIA on POWER9, MI300A's are cpu); special: HBM, CXL or persistent memory without CPUs.
MemoryKind = Literal["cpu", "device", "special"]
Vendor = Literal["nvidia", "amd", "intel"]
Fabric = Literal["infiniband", "roce", "slingshot", "omnipath", "ethernet"]
LinkKind = Literal["nvlink", "xgmi", "xelink"]
# As `nvidia-smi topo -m` calls them: one bridge, several bridges, one host bridge, one NUMA node,
# the link between sockets.
Nearness = Literal["SELF", "PIX", "PXB", "PHB", "NODE", "SYS"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    """A NUMA node. ``cpus`` are logical CPUs; ``distances`` are the kernel's (10 = local), in the
    order of ``NodeTopology.numa``, empty where unknown."""

    index: int
    kind: MemoryKind
    cpus: tuple[int, ...]
    mem_mib: int
    distances: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """A physical core: its logical CPUs (hardware threads, the first one first), the socket, the
    NUMA node and the L3 cache that it belongs to (None: unknown)."""

    cpus: tuple[int, ...]
    package: int
    numa: int | None
    l3: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU (on MI250X: a GCD). ``index`` is its place in the vendor's own order (by PCI address
    for NVIDIA with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``); ``pci_path`` are the bridges above it from
    the root (``pci0000:40``) down, without itself; ``numa`` is the nearest node with CPUs, ``cpus``
    the logical CPUs that the kernel calls local (empty: unknown). ``tiles`` are the parts that
    Intel's library may show as GPUs of their own (None: not a matter of this GPU)."""

    index: int
    vendor: Vendor
    pci: str | None = None
    uuid: str | None = None
    name: str | None = None
    mem_mib: int | None = None
    numa: int | None = None
    cpus: tuple[int, ...] = ()
    pci_path: tuple[str, ...] = ()
    memory_node: int | None = None
    tiles: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HcaPort:
    """A port. ``state`` is ACTIVE, DOWN, INIT or ARMED; ``rate_gbps`` the signalling rate that
    the kernel reports (0: unknown)."""

    number: int
    state: str
    rate_gbps: float
    link_layer: str
    phys_state: str | None = None
    guid: str | None = None
    lid: int | None = None
    mtu: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hca:
    """A network device for RDMA, or the network interface where there is none. ``interfaces`` are
    its network interfaces (ib0, hsn0)."""

    name: str
    fabric: Fabric
    ports: tuple[HcaPort, ...] = ()
    pci: str | None = None
    numa: int | None = None
    cpus: tuple[int, ...] = ()
    pci_path: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    node_guid: str | None = None
    firmware: str | None = None
    board: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    """A local NVMe drive."""

    name: str
    pci: str | None = None
    numa: int | None = None
    size_gib: float | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLink:
    """A direct link between two GPUs (places in ``NodeTopology.gpus``); ``lanes`` in parallel."""

    a: int
    b: int
    kind: LinkKind
    lanes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTopology:
    """One node. ``sources`` say where it was read from, in the order of trust. ``cores`` are
    sorted by their first logical CPU, ``numa`` by index, ``gpus`` by vendor and index, ``hcas`` by
    name."""

    host: str
    sources: tuple[str, ...] = ()
    arch: str = ""
    cores: tuple[Core, ...] = ()
    numa: tuple[NumaNode, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    hcas: tuple[Hca, ...] = ()
    drives: tuple[Drive, ...] = ()
    links: tuple[GpuLink, ...] = ()

    @property
    def cpus(self) -> tuple[int, ...]:
        """All logical CPUs."""
        return tuple(sorted(cpu for core in self.cores for cpu in core.cpus))

    @property
    def memory_nodes(self) -> tuple[NumaNode, ...]:
        """The NUMA nodes with CPUs and memory of their own, where a process may be bound to."""
        return tuple(node for node in self.numa if node.kind == "cpu" and node.mem_mib > 0)

    def gpu_at(self, pci: str | None) -> Gpu | None:
        """The GPU with this PCI address."""
        return next((gpu for gpu in self.gpus if pci is not None and gpu.pci == pci), None)


# Of a node that has not said anything.
UNKNOWN = NodeTopology(host="")
