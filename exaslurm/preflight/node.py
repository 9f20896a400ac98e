"""All checks of one node, in the order in which a cell would meet what they look at."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

from exaslurm.core.checks import Check, NodeChecks, NodeNeeds, failed, passed
from exaslurm.core.topology import NodeTopology
from exaslurm.errors import PreflightFailed
from exaslurm.facts.address import node_address
from exaslurm.preflight import devices, limits, network, software, storage
from exaslurm.preflight.container import check_container
from exaslurm.preflight.host import Host
from exaslurm.topo.sysfs import read_sysfs

MIN_STATE_GIB, MIN_SHARED_GIB, MIN_LOCAL_GIB = 1.0, 20.0, 20.0


def examine(
    needs: NodeNeeds,
    host: Host,
    *,
    topology: NodeTopology | None = None,
    versions: Mapping[str, str] | None = None,
    python: str = sys.executable,
    speed: bool = True,
) -> NodeChecks:
    """Everything that a node can find out by itself. Takes a second or two where all is well, and
    ends within a minute whatever hangs. ``speed``: measure the shared directory too, which writes
    4 MiB into it."""
    if topology is None:
        topology = read_sysfs(host.sys, host.proc, host=host.name)
    if versions is None:
        versions = {} if host.recorded else software.own_versions()
    address, complaint = _address(host, needs)
    checks = (
        *_software(needs, host, versions, python),
        *(check_container(host, *needs.container) if needs.container else ()),
        *_storage(needs, host, speed),
        limits.check_shm(host, needs.shm_mib),
        *limits.check_limits(host, rdma=devices.is_rdma(topology)),
        network.check_interface(host, needs.interface),
        *complaint,
        network.check_mtu(host, needs.interface),
        network.check_names(host, needs.names),
        network.check_port_range(host, needs.first_port, needs.last_port),
        network.check_ports_free(host, needs.first_port, needs.last_port, needs.port_block),
        *devices.check_gpus(host, topology, needs.gpus),
        *devices.check_gpu_order(topology, needs.gpu_cpus),
        *devices.check_fabric(host, topology, needs.hcas),
        devices.check_numa(topology),
        limits.check_clock(host),
    )
    return NodeChecks(
        host=host.name,
        checks=checks,
        alike=_alike(needs, host, topology, versions),
        address=address,
    )


def _software(
    needs: NodeNeeds, host: Host, versions: Mapping[str, str], python: str
) -> Iterator[Check]:
    if host.recorded:
        yield software.check_python(versions.get("python"), python)
        return
    needed = {"vllm": needs.vllm, "ray": needs.ray}
    yield from software.check_versions(
        versions, version=needs.version, needed=needed, python=python
    )


def _storage(needs: NodeNeeds, host: Host, speed: bool) -> Iterator[Check]:
    yield storage.check_directory(
        host, "storage.state", needs.state, min_free_gib=MIN_STATE_GIB, must_exist=False
    )
    shared = storage.check_directory(
        host,
        "storage.shared",
        needs.shared,
        min_free_gib=MIN_SHARED_GIB,
        witness=needs.witness,
    )
    yield shared
    if speed and shared.outcome in ("pass", "warn"):
        yield storage.check_speed(host, "storage.speed", needs.shared)
    if needs.local is not None:
        yield storage.check_directory(
            host, "storage.local", needs.local, min_free_gib=MIN_LOCAL_GIB, must_exist=True
        )
    yield storage.check_tmp(needs.tmp, host)


def _address(host: Host, needs: NodeNeeds) -> tuple[str, tuple[Check, ...]]:
    """The node's address for the others, and what is to be said about it."""
    if host.recorded:
        return "", ()
    try:
        where = node_address(needs.interface, host.name, needs.host_suffix)
    except PreflightFailed as error:
        remedy = error.remedy or "set `interface` in the site config"
        return "", (failed("net.address", str(error), remedy),)
    text = where.address + (f" on {where.interface}" if where.interface else "")
    return where.address, (passed("net.address", text),)


def _alike(
    needs: NodeNeeds, host: Host, topology: NodeTopology, versions: Mapping[str, str]
) -> dict[str, str]:
    models = devices.gpu_models(host, topology)
    return {
        "uniform.gpu_driver": devices.gpu_driver(host) or "",
        "uniform.gpu_model": ", ".join(f"{count} x {name}" for name, count in models.items()),
        "uniform.fabric": devices.fabric_summary(topology),
        "uniform.mtu": ", ".join(
            f"{name} {mtu}" for name, mtu in network.mtu_of(host, needs.interface).items()
        )
        if needs.interface is not None
        else "",
        "uniform.cpus": str(len(topology.cpus) or ""),
        "uniform.kernel": host.read("/proc/sys/kernel/osrelease") or "",
        **{f"uniform.{name}": version for name, version in versions.items()},
    }


def ports_for(needs: NodeNeeds, seed: int) -> Iterator[int]:
    """Ports to try for a short-lived listener: those of the site, from a place on that differs
    from job to job."""
    span = needs.last_port - needs.first_port + 1
    return (needs.first_port + (seed * 7919 + step) % span for step in range(min(span, 64)))
