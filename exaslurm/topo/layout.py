"""A node as people draw it: sockets, NUMA nodes, and the devices that are near each."""

from __future__ import annotations

from dataclasses import dataclass

from exaslurm.core.topology import Core, Drive, Gpu, Hca, NodeTopology, NumaNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """A NUMA node (None: what is near to no single one) with its cores and devices. ``gpus`` are
    (place in ``NodeTopology.gpus``, GPU)."""

    numa: NumaNode | None
    package: int | None
    cores: tuple[Core, ...] = ()
    gpus: tuple[tuple[int, Gpu], ...] = ()
    hcas: tuple[Hca, ...] = ()
    drives: tuple[Drive, ...] = ()


def domains(topology: NodeTopology) -> tuple[Domain, ...]:
    """By socket and NUMA node; last what belongs to none, if there is any. Memory of GPUs is not a
    domain of its own: it is told with its GPU."""
    known = [node for node in topology.numa if node.kind != "device"]
    found = [_domain(topology, node) for node in known]
    found.sort(key=lambda domain: (domain.package is None, domain.package or 0, _index(domain)))
    indexes = {node.index for node in known}
    rest = Domain(
        numa=None,
        package=None,
        cores=tuple(core for core in topology.cores if core.numa not in indexes),
        gpus=tuple((i, gpu) for i, gpu in enumerate(topology.gpus) if gpu.numa not in indexes),
        hcas=tuple(hca for hca in topology.hcas if hca.numa not in indexes),
        drives=tuple(drive for drive in topology.drives if drive.numa not in indexes),
    )
    if rest.cores or rest.gpus or rest.hcas or rest.drives:
        found.append(rest)
    return tuple(found)


def _domain(topology: NodeTopology, node: NumaNode) -> Domain:
    cores = tuple(core for core in topology.cores if core.numa == node.index)
    return Domain(
        numa=node,
        package=cores[0].package if cores else None,
        cores=cores,
        gpus=tuple((i, gpu) for i, gpu in enumerate(topology.gpus) if gpu.numa == node.index),
        hcas=tuple(hca for hca in topology.hcas if hca.numa == node.index),
        drives=tuple(drive for drive in topology.drives if drive.numa == node.index),
    )


def _index(domain: Domain) -> int:
    return domain.numa.index if domain.numa is not None else 0


def summary(topology: NodeTopology) -> str:
    """``8 GPUs, 4 HCAs, 4 NUMA nodes, 64 cores, 128 CPUs``; what there is none of is left out."""
    rdma = sum(hca.fabric != "ethernet" for hca in topology.hcas)
    parts = [
        (len(topology.gpus), "GPU"),
        (rdma, "HCA"),
        (sum(node.kind == "cpu" for node in topology.numa), "NUMA node"),
        (len({core.package for core in topology.cores}), "socket"),
        (len(topology.cores), "core"),
        (len(topology.cpus), "CPU"),
    ]
    return ", ".join(f"{n} {what}{'s' if n != 1 else ''}" for n, what in parts if n)


def gib(mib: int | None) -> str:
    """A size for people: ``96 GiB``, ``-`` where it is not known."""
    if not mib:
        return "-"
    return f"{mib / 1024:.0f} GiB" if mib >= 1024 else f"{mib} MiB"


def hca_text(hca: Hca) -> str:
    """``mlx5_0 (ib0) infiniband 200 Gb/s ACTIVE``."""
    names = f" ({', '.join(hca.interfaces)})" if hca.interfaces not in ((), (hca.name,)) else ""
    ports = [
        f"{f'port {port.number} ' if len(hca.ports) > 1 else ''}"
        f"{f'{port.rate_gbps:g} Gb/s ' if port.rate_gbps else ''}{port.state}"
        for port in hca.ports
    ]
    return f"{hca.name}{names} {hca.fabric} {', '.join(ports)}".rstrip()
