"""A node's /sys and /proc as files: two NUMA nodes of four cores, two AMD GPUs, a Slingshot and an
InfiniBand device, a management interface, a drive."""

from __future__ import annotations

from pathlib import Path

# bridge path, address -> files of the PCI function
PCI: dict[str, dict[str, str]] = {
    # A server's own display: no accelerator.
    "pci0000:00/0000:00:1c.0/0000:03:00.0": {"class": "0x030000", "vendor": "0x1a03"},
    "pci0000:00/0000:00:1d.0/0000:04:00.0": {"class": "0x010802", "vendor": "0x144d"},
    "pci0000:00/0000:00:1d.1/0000:05:00.0": {"class": "0x020000", "vendor": "0x8086"},
    "pci0000:c0/0000:c0:01.1/0000:c1:00.0/0000:c2:00.0/0000:c3:00.0": {
        "class": "0x038000", "vendor": "0x1002", "numa_node": "1",
        "local_cpulist": "4-7,12-15", "product_name": "Instinct MI250X", "unique_id": "9f4c",
        "mem_info_vram_total": "68702699520",
    },
    "pci0000:c0/0000:c0:01.1/0000:c1:00.0/0000:c2:01.0/0000:c6:00.0": {
        "class": "0x038000", "vendor": "0x1002", "numa_node": "1", "local_cpulist": "4-7,12-15",
    },
    # Beside the GPUs, on the other port of their switch.
    "pci0000:c0/0000:c0:01.1/0000:c1:00.0/0000:c2:02.0/0000:c7:00.0": {
        "class": "0x020000", "vendor": "0x17db", "numa_node": "1", "local_cpulist": "4-7,12-15",
    },
    "pci0000:40/0000:40:01.1/0000:41:00.0": {
        "class": "0x020700", "vendor": "0x15b3", "numa_node": "0", "local_cpulist": "0-3,8-11",
    },
}  # fmt: skip
DRIVERS = {"0000:c3:00.0": "amdgpu", "0000:c6:00.0": "amdgpu", "0000:03:00.0": "ast"}

# path below sys, address of the function it belongs to -> files
DEVICES: dict[tuple[str, str], dict[str, str]] = {
    ("class/cxi/cxi0", "0000:c7:00.0"): {},
    ("class/net/hsn0", "0000:c7:00.0"): {
        "speed": "200000", "operstate": "up", "type": "1", "address": "02:00:00:00:01:01",
        "mtu": "9000",
    },
    ("class/net/eth0", "0000:05:00.0"): {
        "speed": "-1", "operstate": "down", "type": "1", "address": "02:00:00:00:02:01",
    },
    ("class/infiniband/mlx5_10", "0000:41:00.0"): {
        "node_guid": "b859:9f03:0007:053a", "fw_ver": "28.39.2048", "board_id": "MT_0000000838",
        "ports/1/state": "4: ACTIVE", "ports/1/phys_state": "5: LinkUp",
        "ports/1/rate": "200 Gb/sec (4X HDR)", "ports/1/link_layer": "InfiniBand",
        "ports/1/lid": "0x1a", "ports/1/gids/0": "fe80:0000:0000:0000:b859:9f03:0007:053a",
        "ports/2/state": "1: DOWN", "ports/2/rate": "2.5 Gb/sec (1X SDR)",
        "ports/2/link_layer": "InfiniBand",
    },
    ("class/net/ib0", "0000:41:00.0"): {"type": "32", "operstate": "up"},
    ("class/block/nvme0n1", "0000:04:00.0"): {
        "size": "3750748848", "device/model": "SAMSUNG MZ1L21T9HCLS-00A07   ",
    },
    ("class/block/nvme0n1p1", "0000:04:00.0"): {"partition": "1", "size": "2048"},
}  # fmt: skip


def fill(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def make_tree(root: Path) -> Path:
    """``root``/sys and ``root``/proc."""
    sys = root / "sys"
    fill(root / "proc", {"sys/kernel/hostname": "n001"})
    for cpu in range(16):
        core, node = cpu % 8, cpu % 8 // 4
        fill(
            sys / f"devices/system/cpu/cpu{cpu}",
            {
                "topology/physical_package_id": str(node),
                "topology/thread_siblings_list": f"{core},{core + 8}",
                # Two L3 caches of two cores in each NUMA node.
                "cache/index3/level": "3",
                "cache/index3/shared_cpu_list": (
                    f"{core // 2 * 2}-{core // 2 * 2 + 1},{core // 2 * 2 + 8}-{core // 2 * 2 + 9}"
                ),
            },
        )
    for node in range(2):
        fill(
            sys / f"devices/system/node/node{node}",
            {
                "cpulist": f"{node * 4}-{node * 4 + 3},{node * 4 + 8}-{node * 4 + 11}",
                "meminfo": f"Node {node} MemTotal: 131072000 kB\nNode {node} MemFree: 1 kB",
                "distance": "10 32" if node == 0 else "32 10",
            },
        )
    for path, files in PCI.items():
        place = fill(sys / "devices" / path, files)
        link(sys / "bus/pci/devices" / place.name, place)
        if place.name in DRIVERS:
            driver = sys / "bus/pci/drivers" / DRIVERS[place.name]
            driver.mkdir(parents=True, exist_ok=True)
            link(place / "driver", driver)
    functions = {Path(path).name: sys / "devices" / path for path in PCI}
    for (name, address), files in DEVICES.items():
        place = functions[address] / name.removeprefix("class/")
        place.mkdir(parents=True, exist_ok=True)
        fill(place, files)
        if "device" not in {part.partition("/")[0] for part in files}:
            link(place / "device", functions[address])
        link(sys / name, place)
    return root


def link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
