"""A node as tables: GPUs, network devices, NUMA nodes, and the matrix of nearness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exaslurm.core.topology import NodeTopology
from exaslurm.topo.files import as_list
from exaslurm.topo.layout import gib
from exaslurm.topo.nearness import link_between, nearest_hcas, nearness
from exaslurm.topo.replicas import PlacedReplica

_LINKS = {"nvlink": "NV", "xgmi": "XGMI", "xelink": "XL"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A header and its rows, all text."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(topology: NodeTopology, replicas: Sequence[PlacedReplica] = ()) -> tuple[Table, ...]:
    """NUMA nodes, GPUs, network devices, nearness, replicas: those that have rows."""
    found = (
        numa_table(topology),
        gpu_table(topology),
        hca_table(topology),
        matrix(topology),
        replica_table(topology, replicas),
    )
    return tuple(table for table in found if table.rows)


def numa_table(topology: NodeTopology) -> Table:
    """NUMA nodes with the kernel's distances."""
    return Table(
        header=("NUMA", "KIND", "MEMORY", "CORES", "CPUS", "DISTANCES"),
        rows=tuple(
            (
                str(node.index),
                node.kind,
                gib(node.mem_mib),
                str(sum(core.numa == node.index for core in topology.cores)),
                as_list(node.cpus) or "-",
                " ".join(map(str, node.distances)) or "-",
            )
            for node in topology.numa
        ),
    )


def gpu_table(topology: NodeTopology) -> Table:
    """GPUs with their nearest network devices."""
    rows = []
    for gpu in topology.gpus:
        near = nearest_hcas(gpu, topology.hcas)
        rows.append(
            (
                str(gpu.index),
                gpu.vendor,
                gpu.name or "-",
                gib(gpu.mem_mib),
                gpu.pci or "-",
                "-" if gpu.numa is None else str(gpu.numa),
                "-" if gpu.memory_node is None else str(gpu.memory_node),
                ", ".join(hca.name for hca in near) or "-",
                nearness(gpu, near[0]) if near else "-",
                gpu.uuid or "-",
            )
        )
    header = (
        "GPU", "VENDOR", "NAME", "MEMORY", "PCI", "NUMA", "MEMORY NODE", "NEAREST HCA", "HOW",
        "UUID",
    )  # fmt: skip
    return Table(header=header, rows=tuple(rows))


def hca_table(topology: NodeTopology) -> Table:
    """One row for each port."""
    rows = tuple(
        (
            hca.name if port is None else f"{hca.name}:{port.number}",
            hca.fabric,
            ", ".join(hca.interfaces) or "-",
            "-" if port is None else port.state,
            f"{port.rate_gbps:g}" if port is not None and port.rate_gbps else "-",
            "-" if port is None else port.link_layer,
            hca.pci or "-",
            "-" if hca.numa is None else str(hca.numa),
            (port.guid if port is not None else None) or hca.node_guid or "-",
            hca.firmware or "-",
        )
        for hca in topology.hcas
        for port in hca.ports or (None,)
    )
    header = (
        "PORT", "FABRIC", "INTERFACES", "STATE", "GBIT/S", "LAYER", "PCI", "NUMA", "GUID",
        "FIRMWARE",
    )  # fmt: skip
    return Table(header=header, rows=rows)


def matrix(topology: NodeTopology) -> Table:
    """As ``nvidia-smi topo -m``: between GPUs a direct link (NV4: of 4 lanes) or nearness, from
    GPUs to network devices nearness."""
    gpus = topology.gpus
    hcas = tuple(hca for hca in topology.hcas if hca.fabric != "ethernet")
    rows = []
    for place, gpu in enumerate(gpus):
        cells = []
        for other in range(len(gpus)):
            link = link_between(topology, place, other)
            if other == place:
                cells.append("X")
            elif link is not None:
                cells.append(f"{_LINKS[link.kind]}{link.lanes}")
            else:
                cells.append(nearness(gpu, gpus[other]))
        cells += [nearness(gpu, hca) for hca in hcas]
        cells.append(as_list(gpu.cpus) or "-")
        rows.append((f"GPU{gpu.index}", *cells))
    header = ("", *(f"GPU{gpu.index}" for gpu in gpus), *(hca.name for hca in hcas), "CPUS")
    return Table(header=header, rows=tuple(rows))


def replica_table(topology: NodeTopology, replicas: Sequence[PlacedReplica]) -> Table:
    """What each replica has on this node."""
    return Table(
        header=("REPLICA", "SHARD", "GPUS", "CPUS", "HCA"),
        rows=tuple(
            (
                replica.id,
                replica.shard,
                ", ".join(str(topology.gpus[place].index) for place in replica.gpus) or "-",
                as_list(replica.cpus) + ("" if replica.pinned else " (shared)"),
                ", ".join(replica.ports) or "-",
            )
            for replica in replicas
        ),
    )
