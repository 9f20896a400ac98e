"""A node from /sys and /proc alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from exaslurm.core.topology import Core, Drive, NumaNode
from exaslurm.topo.files import as_list, cpu_list, cpu_mask, pci_of, short_pci
from exaslurm.topo.nearness import nearest_hcas, nearness
from exaslurm.topo.sysfs import numa_nodes, read_root, read_sysfs
from tests.topo.trees import fill, link, make_tree


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-3,8,10-11\n", (0, 1, 2, 3, 8, 10, 11)), ("", ()), ("5", (5,)), ("0,2", (0, 2))],
)
def test_cpu_lists(text: str, cpus: tuple[int, ...]) -> None:
    assert cpu_list(text) == cpus
    assert as_list(cpus) == text.strip()


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("00000001,0000000f", (0, 1, 2, 3, 32)),
        ("0x00000011,0x11111111", (0, 4, 8, 12, 16, 20, 24, 28, 32, 36)),
        # hwloc leaves a group of zeros empty, and writes an endless set so.
        ("0x00000001,,0x00000003", (0, 1, 64)),
        ("0xf...f", ()),
        ("0x0", ()),
        ("0000,00000000,000000ff", tuple(range(8))),
    ],
)
def test_cpu_masks(text: str, cpus: tuple[int, ...]) -> None:
    assert cpu_mask(text) == cpus


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"), ("0000:c1:00.0", "0000:c1:00.0"),
        ("1b:00.0", "0000:1b:00.0"), ("00000009:01:00.0", "0009:01:00.0"),
        ("10000:01:00.0", "10000:01:00.0"),
    ],
)  # fmt: skip
def test_pci_addresses(text: str, short: str) -> None:
    assert short_pci(text) == short


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "node")


def test_cores_and_memory(root: Path) -> None:
    topology = read_root(root)
    assert topology.host == "n001"
    assert topology.cores[5] == Core(cpus=(5, 13), package=1, numa=1, l3=2)
    assert len(topology.cores) == 8
    assert topology.numa[1] == NumaNode(
        index=1, kind="cpu", cpus=(4, 5, 6, 7, 12, 13, 14, 15), mem_mib=128000, distances=(32, 10)
    )


def test_a_cpu_that_is_offline_is_no_core(root: Path) -> None:
    fill(root / "sys/devices/system/cpu", {"cpu3/online": "0", "cpu11/online": "0"})
    assert [core.cpus[0] for core in read_root(root).cores] == [0, 1, 2, 4, 5, 6, 7]


def test_gpus(root: Path) -> None:
    first, second = read_root(root).gpus
    assert (first.index, first.vendor, first.pci) == (0, "amd", "0000:c3:00.0")
    assert (first.uuid, first.name, first.mem_mib) == ("9f4c", "Instinct MI250X", 65520)
    assert (first.numa, first.cpus) == (1, (4, 5, 6, 7, 12, 13, 14, 15))
    assert first.pci_path == ("pci0000:c0", "0000:c0:01.1", "0000:c1:00.0", "0000:c2:00.0")
    assert (second.index, second.pci, second.name) == (1, "0000:c6:00.0", None)
    assert nearness(first, second) == "PIX"


def test_a_gpu_without_a_driver_is_none_of_ours(root: Path) -> None:
    device = root / "sys/bus/pci/devices/0000:c3:00.0"
    (device / "driver").unlink()
    vfio = root / "sys/bus/pci/drivers/vfio-pci"
    vfio.mkdir()
    link(device / "driver", vfio)
    assert [gpu.pci for gpu in read_root(root).gpus] == ["0000:c6:00.0"]


@pytest.mark.parametrize(
    "files",
    [
        {"tile0/physical_vram_size_bytes": str(64 << 30),
         "tile1/physical_vram_size_bytes": str(64 << 30)},
        {"drm/card1/gt/gt0/id": "0", "drm/card1/gt/gt1/id": "1",
         "drm/card1/lmem_total_bytes": str(128 << 30)},
    ],
    ids=["xe", "i915"],
)  # fmt: skip
def test_tiles_and_memory_of_an_intel_gpu(root: Path, files: dict[str, str]) -> None:
    place = fill(
        root / "sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0",
        {"class": "0x038000", "vendor": "0x8086", "numa_node": "0", **files},
    )
    link(root / "sys/bus/pci/devices/0000:81:00.0", place)
    gpu = read_root(root).gpus[-1]
    assert (gpu.vendor, gpu.index, gpu.tiles, gpu.mem_mib) == ("intel", 0, 2, 131072)


def test_infiniband(root: Path) -> None:
    hca = next(hca for hca in read_root(root).hcas if hca.name == "mlx5_10")
    assert (hca.fabric, hca.pci, hca.numa) == ("infiniband", "0000:41:00.0", 0)
    assert (hca.interfaces, hca.node_guid) == (("ib0",), "b859:9f03:0007:053a")
    assert (hca.firmware, hca.board) == ("28.39.2048", "MT_0000000838")
    up, down = hca.ports
    assert (up.state, up.phys_state, up.rate_gbps, up.lid) == ("ACTIVE", "LinkUp", 200.0, 26)
    assert up.guid == "b859:9f03:0007:053a"
    assert (down.number, down.state, down.rate_gbps, down.guid) == (2, "DOWN", 2.5, None)


def test_roce_is_told_from_infiniband(root: Path) -> None:
    for port in (1, 2):
        fill(
            root / "sys/class/infiniband/mlx5_10",
            {f"ports/{port}/link_layer": "Ethernet"},
        )
    hca = next(hca for hca in read_root(root).hcas if hca.name == "mlx5_10")
    assert hca.fabric == "roce"


@pytest.mark.parametrize("kind", ["cxi", "cxi_user"])
def test_slingshot(root: Path, kind: str) -> None:
    (root / "sys/class/cxi").rename(root / "sys/class" / kind)
    topology = read_root(root)
    hca = next(hca for hca in topology.hcas if hca.name == "cxi0")
    assert (hca.fabric, hca.interfaces, hca.numa) == ("slingshot", ("hsn0",), 1)
    (port,) = hca.ports
    assert (port.state, port.rate_gbps, port.link_layer, port.mtu) == (
        "ACTIVE", 200.0, "Ethernet", 9000,
    )  # fmt: skip
    assert nearest_hcas(topology.gpus[0], topology.hcas) == (hca,)
    assert nearness(topology.gpus[0], hca) == "PIX"


@pytest.mark.parametrize("device", ["class/infiniband/mlx5_10", "class/cxi/cxi0"])
def test_virtual_functions_are_for_others(root: Path, device: str) -> None:
    (root / "sys" / device / "device/physfn").mkdir()
    assert device.rpartition("/")[2] not in {hca.name for hca in read_root(root).hcas}


def test_other_interfaces_come_by_themselves(root: Path) -> None:
    names = [(hca.name, hca.fabric) for hca in read_root(root).hcas]
    assert names == [("cxi0", "slingshot"), ("eth0", "ethernet"), ("mlx5_10", "infiniband")]
    eth0 = read_root(root).hcas[1]
    assert (eth0.ports[0].state, eth0.ports[0].rate_gbps) == ("DOWN", 0.0)


def test_drives(root: Path) -> None:
    assert read_root(root).drives == (
        Drive(name="nvme0n1", pci="0000:04:00.0", size_gib=1788.5,
              model="SAMSUNG MZ1L21T9HCLS-00A07"),
    )  # fmt: skip


def grace(root: Path) -> Path:
    """Two superchips: NUMA 0 and 1 with CPUs, 2 and 10 the GPUs' memory, the rest empty."""
    nodes = root / "sys/devices/system/node"
    for node in range(18):
        memory = {0: 120, 1: 120, 2: 96, 10: 96}.get(node, 0)
        fill(
            nodes / f"node{node}",
            {
                "cpulist": {0: "0-3", 1: "4-7"}.get(node, ""),
                "meminfo": f"Node {node} MemTotal: {memory << 20} kB",
                "distance": " ".join("10" if other == node else "80" for other in range(18)),
            },
        )
    fill(nodes, {"has_generic_initiator": "2-17"})
    return root


def test_memory_of_gpus_is_no_cpu_memory(tmp_path: Path) -> None:
    sys = grace(tmp_path) / "sys"
    nodes = numa_nodes(sys, tmp_path / "proc")
    assert [(node.index, node.kind) for node in nodes] == [
        (0, "cpu"), (1, "cpu"), (2, "device"), (10, "device"),
    ]  # fmt: skip
    # A column for each that is shown, out of one for each that is online.
    assert nodes[3].distances == (80, 80, 80, 10)


def test_the_driver_says_whose_memory_it_is(tmp_path: Path) -> None:
    root = grace(tmp_path)
    status = "Node:      10\nStatus:    online\n"
    fill(root, {"proc/driver/nvidia/gpus/0009:01:00.0/numa_status": status})
    place = fill(
        root / "sys/devices/pci0009:00/0009:00:00.0/0009:01:00.0",
        {"class": "0x030200", "vendor": "0x10de", "numa_node": "1"},
    )
    link(root / "sys/bus/pci/devices/0009:01:00.0", place)
    (gpu,) = read_sysfs(root / "sys", root / "proc").gpus
    assert (gpu.numa, gpu.memory_node) == (1, 10)


@pytest.mark.parametrize(
    ("uuid", "expected"),
    [("GPU-5d1c", "GPU-5d1c"), ("GPU-????????-????-????-????-????????????", None)],
)
def test_nvidias_driver_names_its_gpus(tmp_path: Path, uuid: str, expected: str | None) -> None:
    place = fill(
        tmp_path / "sys/devices/pci0000:10/0000:10:01.0/0000:17:00.0",
        {"class": "0x030200", "vendor": "0x10de"},
    )
    link(tmp_path / "sys/bus/pci/devices/0000:17:00.0", place)
    text = f"Model: \t\t NVIDIA A100-SXM4-40GB\nIRQ:   \t\t 18\nGPU UUID: \t {uuid}\n"
    fill(tmp_path, {"proc/driver/nvidia/gpus/0000:17:00.0/information": text})
    (gpu,) = read_sysfs(tmp_path / "sys", tmp_path / "proc").gpus
    assert (gpu.name, gpu.uuid) == ("NVIDIA A100-SXM4-40GB", expected)


def test_high_bandwidth_memory_of_a_processor_is_special(tmp_path: Path) -> None:
    fill(
        tmp_path / "devices/system/node",
        {
            "node0/cpulist": "0-3", "node0/meminfo": "Node 0 MemTotal: 131072000 kB",
            "node1/cpulist": "", "node1/meminfo": "Node 1 MemTotal: 16777216 kB",
        },
    )  # fmt: skip
    assert [node.kind for node in numa_nodes(tmp_path, tmp_path)] == ["cpu", "special"]


def test_firmware_that_names_a_node_without_cpus(tmp_path: Path) -> None:
    """On POWER9 and Grace a device may be said to be at a node of memory only."""
    root = make_tree(tmp_path / "node")
    nodes = root / "sys/devices/system/node"
    fill(nodes, {"node2/cpulist": "", "node2/meminfo": "Node 2 MemTotal: 16777216 kB",
                 "node0/distance": "10 32 80", "node1/distance": "32 10 20",
                 "node2/distance": "80 20 10"})  # fmt: skip
    fill(root / "sys/bus/pci/devices/0000:c3:00.0", {"numa_node": "2"})
    assert read_root(root).gpus[0].numa == 1


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    topology = read_sysfs(tmp_path, tmp_path)
    assert (topology.cores, topology.numa, topology.gpus, topology.hcas) == ((), (), (), ())


def test_the_path_of_what_is_not_on_the_bus(tmp_path: Path) -> None:
    assert pci_of(tmp_path / "devices/virtual/net/lo") == (None, ())
