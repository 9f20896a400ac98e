"""Recorded real machines: how many GPUs, HCAs and NUMA nodes, and what is near what.

The expectations were read off the files by hand (and, for the sysfs trees, from hwloc's own XML of
the same machine), not taken from the reader's output.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from exaslurm.core.topology import Gpu, NodeTopology
from exaslurm.topo.nearness import islands, nearest_hcas, nearness
from exaslurm.topo.source import read_any


@dataclass(frozen=True, kw_only=True)
class Machine:
    """``numa``: nodes with CPUs; ``gpu_memory``: nodes that are GPUs' memory; ``gpu_numa`` and
    ``near`` in the order of the GPUs: NUMA node, and (nearest RDMA devices, how near)."""

    cores: int
    cpus: int
    numa: int
    gpu_memory: int = 0
    rdma: tuple[str, ...] = ()
    gpu_numa: tuple[int, ...] = ()
    near: tuple[tuple[tuple[str, ...], str], ...] = ()


MACHINES = {
    "24em64t-2n6c2t-pci.xml": Machine(
        cores=12, cpus=24, numa=2, rdma=("mlx4_0",), gpu_numa=(0, 1, 1),
        near=((("mlx4_0",), "PHB"), (("mlx4_0",), "SYS"), (("mlx4_0",), "SYS")),
    ),
    # In a cgroup: six of 32 CPUs, and six of eight NUMA nodes, four of them without any CPU left.
    "32amd64-4s2n4c-cgroup2.xml": Machine(cores=6, cpus=6, numa=6),
    # A card with a CUDA device and one with an OpenCL device of another vendor beside it.
    "32em64t-2n8c2t-pci-wholeio.xml": Machine(
        cores=16, cpus=32, numa=2, rdma=("mlx5_0",), gpu_numa=(1, 0, 1, 1),
        near=(
            (("mlx5_0",), "PIX"), (("mlx5_0",), "SYS"), (("mlx5_0",), "PHB"), (("mlx5_0",), "PIX"),
        ),
    ),
    "40intel64-2g2n4c+pcilocality.xml": Machine(cores=40, cpus=40, numa=4, rdma=("qib0",)),
    "40intel64-2g2n4c+pcilocality.tar.bz2": Machine(cores=40, cpus=40, numa=4, rdma=("qib0",)),
    "AMD-19h-Zen3-2xEpyc-7763.xml": Machine(cores=128, cpus=128, numa=1),
    "dudley.xml": Machine(cores=8, cpus=16, numa=1),
    # The tree holds 32 of the machine's 176 CPUs.
    "nvidiagpunumanodes.tar.bz2": Machine(
        cores=8, cpus=32, numa=2, gpu_memory=6, gpu_numa=(0, 0, 0, 8, 8, 8),
        near=(((), ""),) * 6,
    ),
    # NCCL's files have no cores.
    "rccl_topo_4p2h_2nic.xml": Machine(
        cores=0, cpus=0, numa=1, rdma=("mlx5_0", "mlx5_1"), gpu_numa=(0,) * 8,
        near=((("mlx5_0",), "PXB"),) * 4 + ((("mlx5_1",), "PXB"),) * 4,
    ),
    "rccl_topo_8p_90a.xml": Machine(
        cores=0, cpus=0, numa=1, gpu_numa=(0,) * 8, near=((("eth0",), "NODE"),) * 8,
    ),
    "rccl_topo_8p_940.xml": Machine(
        cores=0, cpus=0, numa=2, rdma=tuple(f"mlx5_{i}" for i in range(8)),
        gpu_numa=(0, 0, 0, 0, 1, 1, 1, 1),
        near=tuple(((f"mlx5_{i}",), "PXB") for i in range(8)),
    ),
    "rccl_topo_8p_rome_n4.xml": Machine(
        cores=0, cpus=0, numa=7, rdma=("mlx5_0",), gpu_numa=(1, 2, 2, 3, 5, 5, 6, 7),
        near=((("mlx5_0",), "SYS"),) * 8,
    ),
}  # fmt: skip


def topology_of(name: str, folder: Path, unpacked: dict[str, NodeTopology]) -> NodeTopology:
    return unpacked[name] if name.endswith(".tar.bz2") else read_any(folder / name)


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_a_machine(name: str, folder: Path, unpacked: dict[str, NodeTopology]) -> None:
    machine, topology = MACHINES[name], topology_of(name, folder, unpacked)
    assert len(topology.cores) == machine.cores
    assert len(topology.cpus) == machine.cpus
    assert sum(node.kind == "cpu" for node in topology.numa) == machine.numa
    assert sum(node.kind == "device" for node in topology.numa) == machine.gpu_memory
    assert sum(node.kind == "special" for node in topology.numa) == 0
    rdma = tuple(hca.name for hca in topology.hcas if hca.fabric != "ethernet")
    assert rdma == machine.rdma
    assert len(topology.gpus) == len(machine.gpu_numa)
    assert tuple(gpu.numa for gpu in topology.gpus) == machine.gpu_numa
    assert tuple(near(gpu, topology) for gpu in topology.gpus) == machine.near


def near(gpu: Gpu, topology: NodeTopology) -> tuple[tuple[str, ...], str]:
    found = nearest_hcas(gpu, topology.hcas)
    return tuple(hca.name for hca in found), nearness(gpu, found[0]) if found else ""


def test_no_machine_is_left_out(folder: Path) -> None:
    recorded = {path.name for path in folder.iterdir() if path.name.endswith((".xml", ".bz2"))}
    assert recorded == set(MACHINES)


def test_tree_and_export_of_one_machine_agree(
    folder: Path, unpacked: dict[str, NodeTopology]
) -> None:
    tree = unpacked["40intel64-2g2n4c+pcilocality.tar.bz2"]
    export = read_any(folder / "40intel64-2g2n4c+pcilocality.xml")
    assert tree.numa == export.numa
    assert [(core.cpus, core.package, core.numa) for core in tree.cores] == [
        (core.cpus, core.package, core.numa) for core in export.cores
    ]
    assert {(hca.name, hca.pci, hca.pci_path) for hca in tree.hcas} == {
        (hca.name, hca.pci, hca.pci_path) for hca in export.hcas
    }
    port, exported = (
        next(hca for hca in side.hcas if hca.name == "qib0").ports[0] for side in (tree, export)
    )
    assert (port.state, port.guid, port.lid) == (exported.state, exported.guid, exported.lid)
    assert (port.rate_gbps, port.phys_state) == (40.0, "LinkUp")


def test_memory_of_gpus(unpacked: dict[str, NodeTopology]) -> None:
    topology = unpacked["nvidiagpunumanodes.tar.bz2"]
    # hwloc says the same in nvidiagpunumanodes.kept.output.
    assert [(gpu.pci, gpu.memory_node) for gpu in topology.gpus] == [
        ("0004:05:00.0", 255), ("0004:06:00.0", 254), ("0006:00:00.0", 253),
        ("0007:00:00.0", 252), ("0035:04:00.0", 251), ("0035:05:00.0", 250),
    ]  # fmt: skip
    assert [node.index for node in topology.memory_nodes] == [0, 8]
    assert topology.numa[0].distances == (10, 40, 80, 80, 80, 80, 80, 80)


def test_names_of_amd_gpus(folder: Path) -> None:
    names = [
        {gpu.name for gpu in read_any(folder / f"rccl_topo_8p_{kind}.xml").gpus}
        for kind in ("90a", "940", "rome_n4")
    ]
    assert names == [{"gfx90a"}, {"gfx942"}, {"gfx906"}]


def test_links_of_a_hive(folder: Path) -> None:
    assert islands(read_any(folder / "rccl_topo_4p2h_2nic.xml")) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert islands(read_any(folder / "rccl_topo_8p_rome_n4.xml")) == ((0, 2, 3, 5), (1, 4, 6, 7))
    all_to_all = read_any(folder / "rccl_topo_8p_940.xml")
    assert len(all_to_all.links) == 28
