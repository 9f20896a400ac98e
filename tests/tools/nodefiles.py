"""Nodes of real centres, from tests/topo/fixtures: topology, reserved CPUs, and the bindings that
the centre's own pages give."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from exaslurm.core.topology import (
    Core,
    Drive,
    Gpu,
    GpuLink,
    Hca,
    HcaPort,
    NodeTopology,
    NumaNode,
)
from exaslurm.topo.files import cpu_list, cpu_mask

FIXTURES = Path(__file__).resolve().parents[1] / "topo/fixtures"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One replica as a page has it. ``gpus`` are vendor indexes; ``cores`` first threads of cores;
    None: the page does not say."""

    gpus: tuple[int, ...]
    first_cpu: int | None
    cores: tuple[int, ...] | None
    numa: int | None
    hca: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFile:
    """A node. ``reserved`` are the logical CPUs that no job gets."""

    name: str
    topology: NodeTopology
    reserved: tuple[int, ...]
    gpus_per_replica: int
    cores_per_replica: int
    expected: tuple[Expected, ...]
    raw: Mapping[str, Any]


def names() -> list[str]:
    return sorted(path.stem for path in FIXTURES.glob("*.yaml"))


def load(name: str) -> NodeFile:
    raw = yaml.safe_load((FIXTURES / f"{name}.yaml").read_text(encoding="utf-8"))
    expected = raw["expected"]
    return NodeFile(
        name=raw["name"],
        topology=_topology(name, raw),
        reserved=cpu_list(raw.get("reserved", {}).get("cpus", "")),
        gpus_per_replica=expected["gpus_per_replica"],
        cores_per_replica=expected["cores_per_replica"],
        expected=tuple(_expected(row) for row in expected["replicas"]),
        raw=raw,
    )


def _expected(row: Mapping[str, Any]) -> Expected:
    cores = cpu_list(row["cores"]) if "cores" in row else None
    if "mask" in row:
        # One number of any length, not the kernel's groups of 32 bits.
        cores = cpu_mask(row["mask"])
    return Expected(
        gpus=tuple(row["gpus"]),
        first_cpu=row.get("first_cpu"),
        cores=cores,
        numa=row.get("numa"),
        hca=row.get("hca"),
    )


def _topology(name: str, raw: Mapping[str, Any]) -> NodeTopology:
    numa = tuple(_numa(row) for row in raw["numa"])
    home = {cpu: node.index for node in numa for cpu in node.cpus}
    shape = raw["cores"]
    count, threads = shape["count"], shape["threads"]
    gpus = raw["gpus"]
    hcas = raw["hcas"]
    links = raw["links"]
    devices = gpus["devices"]
    pairs = links["pairs"]
    if pairs == "all":
        pairs = list(itertools.combinations(range(len(devices)), 2))
    return NodeTopology(
        host=name,
        sources=tuple(page["url"] for page in raw["pages"].values()),
        arch=raw["arch"],
        cores=tuple(
            Core(
                cpus=tuple(core + thread * count for thread in range(threads)),
                package=core * shape["packages"] // count,
                numa=home[core],
                l3=core * shape["l3"] // count,
            )
            for core in range(count)
        ),
        numa=numa,
        gpus=tuple(_gpu(row, gpus, place) for place, row in enumerate(devices)),
        hcas=tuple(_hca(row, hcas, place) for place, row in enumerate(hcas["devices"])),
        drives=tuple(Drive(name=row["name"]) for row in raw.get("drives", ())),
        links=tuple(GpuLink(a=a, b=b, kind=links["kind"], lanes=links["lanes"]) for a, b in pairs),
    )


def _numa(row: Mapping[str, Any]) -> NumaNode:
    return NumaNode(
        index=row["index"],
        kind=row.get("kind", "cpu"),
        cpus=cpu_list(row.get("cpus", "")),
        mem_mib=row["mem_mib"] if "mem_mib" in row else row["mem_gib"] * 1024,
    )


def _gpu(row: Mapping[str, Any], common: Mapping[str, Any], place: int) -> Gpu:
    return Gpu(
        index=row["index"],
        vendor=common["vendor"],
        name=common["name"],
        mem_mib=common["mem_gib"] * 1024,
        pci=row.get("pci", f"fffe:01:{place:02x}.0"),
        numa=row["numa"],
        cpus=cpu_list(row.get("cpus", "")),
        pci_path=_path(row, "gpu"),
        memory_node=row.get("memory_node"),
    )


def _hca(row: Mapping[str, Any], common: Mapping[str, Any], place: int) -> Hca:
    layer = "InfiniBand" if common["fabric"] == "infiniband" else "Ethernet"
    port = HcaPort(number=1, state="ACTIVE", rate_gbps=common["rate_gbps"], link_layer=layer)
    return Hca(
        name=row["name"],
        fabric=common["fabric"],
        ports=(port,),
        interfaces=tuple(row["interfaces"]),
        pci=row.get("pci", f"fffe:02:{place:02x}.0"),
        numa=row.get("numa"),
        pci_path=_path(row, "hca"),
    )


def _path(row: Mapping[str, Any], kind: str) -> tuple[str, ...]:
    """A host bridge, a switch, and the switch's port for this kind of device."""
    switch = row.get("together")
    return () if switch is None else (f"pci-{switch}", f"{switch}-up", f"{switch}-{kind}")
