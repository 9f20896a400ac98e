"""A /sys and a /proc of a two-socket node, as files."""

from __future__ import annotations

from pathlib import Path

import pytest

SYS = {
    "devices/system/node/node0/cpulist": "0-3,8-11\n",
    "devices/system/node/node0/meminfo": "Node 0 MemTotal: 131072000 kB\nNode 0 MemFree: 1 kB\n",
    "devices/system/node/node1/cpulist": "4-7,12-15\n",
    "devices/system/node/node1/meminfo": "Node 1 MemTotal:       131072000 kB\n",
    "devices/system/node/node10/cpulist": "\n",
    "devices/system/node/node10/meminfo": "Node 10 MemTotal: 0 kB\n",
    "class/infiniband/mlx5_0/device/numa_node": "0\n",
    "class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    "class/infiniband/mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)\n",
    "class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
    "class/infiniband/mlx5_1/device/numa_node": "-1\n",
    "class/infiniband/mlx5_1/ports/1/state": "1: DOWN\n",
    "class/infiniband/mlx5_1/ports/1/rate": "2.5 Gb/sec (1X SDR)\n",
    "class/infiniband/mlx5_1/ports/1/link_layer": "Ethernet\n",
    # Two AMD GPUs, and a server's own display, which is none.
    "bus/pci/devices/0000:03:00.0/vendor": "0x1a03\n",
    "bus/pci/devices/0000:03:00.0/class": "0x030000\n",
    "bus/pci/devices/0000:c1:00.0/vendor": "0x1002\n",
    "bus/pci/devices/0000:c1:00.0/class": "0x038000\n",
    "bus/pci/devices/0000:c1:00.0/numa_node": "0\n",
    "bus/pci/devices/0000:c1:00.0/unique_id": "9f4c\n",
    "bus/pci/devices/0000:c1:00.0/product_name": "Instinct MI250X\n",
    "bus/pci/devices/0000:c1:00.0/mem_info_vram_total": "68702699520\n",
    "bus/pci/devices/0000:d1:00.0/vendor": "0x1002\n",
    "bus/pci/devices/0000:d1:00.0/class": "0x038000\n",
    "bus/pci/devices/0000:d1:00.0/numa_node": "1\n",
}


def fill(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    root = fill(tmp_path / "sys", SYS)
    driver = root / "bus/pci/drivers/amdgpu"
    driver.mkdir(parents=True)
    for pci in ("0000:c1:00.0", "0000:d1:00.0"):
        (root / "bus/pci/devices" / pci / "driver").symlink_to(driver)
    return root


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    return fill(
        tmp_path / "proc",
        {
            "meminfo": "MemTotal:       262144000 kB\nMemFree:   1 kB\n",
            "self/cgroup": "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n",
        },
    )
