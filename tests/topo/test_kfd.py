"""AMD's compute driver: order, memory, links, and what a cgroup hides."""

from __future__ import annotations

from pathlib import Path

import pytest

from exaslurm.topo.kfd import kfd_accessible, kfd_address
from exaslurm.topo.sysfs import read_root
from tests.topo.trees import fill, make_tree

NODES = "sys/class/kfd/kfd/topology/nodes"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The driver counts c6 before c3: its order is the one that counts."""
    root = make_tree(tmp_path / "node")
    return fill(
        root,
        {
            f"{NODES}/0/gpu_id": "0",
            f"{NODES}/0/properties": "cpu_cores_count 16\nsimd_count 0",
            f"{NODES}/1/gpu_id": "51000",
            f"{NODES}/1/properties": (
                f"location_id {0xC600}\ndomain 0\nunique_id 4660\ngfx_target_version 90010"
            ),
            f"{NODES}/1/mem_banks/0/properties": "heap_type 1\nsize_in_bytes 68702699520",
            f"{NODES}/1/io_links/0/properties": "type 2\nnode_from 1\nnode_to 0",
            f"{NODES}/1/io_links/1/properties": (
                "type 11\nnode_from 1\nnode_to 2\nmin_bandwidth 50000\nmax_bandwidth 200000"
            ),
            f"{NODES}/2/gpu_id": "51001",
            f"{NODES}/2/properties": f"location_id {0xC300}\ndomain 0\ngfx_target_version 90402",
            f"{NODES}/2/io_links/0/properties": (
                "type 11\nnode_from 2\nnode_to 1\nmin_bandwidth 50000\nmax_bandwidth 200000"
            ),
        },
    )


def test_addresses() -> None:
    assert kfd_address({"location_id": 0xC300, "domain": 0}) == "0000:c3:00.0"
    assert kfd_address({"location_id": 0x0109, "domain": 2}) == "0002:01:01.1"


def test_order_memory_and_links(root: Path) -> None:
    topology = read_root(root)
    assert [(gpu.index, gpu.pci) for gpu in topology.gpus] == [
        (0, "0000:c6:00.0"), (1, "0000:c3:00.0"),
    ]  # fmt: skip
    first, second = topology.gpus
    # What the bus does not tell, the driver does.
    assert (first.mem_mib, first.uuid, first.name) == (65520, "0000000000001234", "gfx90a")
    assert (second.uuid, second.name) == ("9f4c", "Instinct MI250X")
    (link,) = topology.links
    assert (link.a, link.b, link.kind, link.lanes) == (0, 1, "xgmi", 4)


def test_a_gpu_that_the_step_may_not_use_is_still_there(root: Path) -> None:
    """In a device cgroup the driver answers "0", or an error, for the others."""
    (root / NODES / "1/gpu_id").unlink()
    topology = read_root(root)
    assert [gpu.pci for gpu in topology.gpus] == ["0000:c3:00.0", "0000:c6:00.0"]
    accessible = kfd_accessible(root / "sys", topology.gpus)
    assert [gpu.pci for gpu in accessible or ()] == ["0000:c3:00.0"]


def test_no_driver(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "node")
    assert kfd_accessible(root / "sys", read_root(root).gpus) is None
    assert [gpu.index for gpu in read_root(root).gpus] == [0, 1]
