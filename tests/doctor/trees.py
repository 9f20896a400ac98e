"""Small trees of /sys and /proc, as of a node with four GPUs and four HCAs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from exaslurm.cli.main import run

SITE = """\
schema: exaslurm/site/v1
name: recorded
extends: generic
python: /opt/env/bin/python
interface: ib0
storage: {shared: /data, ram: /tmp}
"""

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max open files            1024                 524288               files
Max locked memory         unlimited            unlimited            bytes
"""


class Tree:
    """One node's tree; ``put`` overwrites a file of it, which is how a fault is planted."""

    def __init__(self, parent: Path, name: str) -> None:
        self.root = parent / name
        self.put("opt/env/pyvenv.cfg", "home = /usr/bin\nversion = 3.11.9\n")
        self.put("proc/self/limits", LIMITS)
        self.put("proc/net/tcp", "  sl  local_address rem_address   st\n")
        self.put("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n")
        self.put("proc/sys/kernel/osrelease", "5.14.0-427\n")
        self.put(
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 2025\n",
        )
        self.put("sys/module/nvidia/version", "570.86.15\n")
        for numa in (0, 1):
            node = f"sys/devices/system/node/node{numa}"
            self.put(f"{node}/cpulist", f"{8 * numa}-{8 * numa + 7}\n")
            self.put(f"{node}/meminfo", f"Node {numa} MemTotal:       263873484 kB\n")
        for index in range(4):
            self._gpu(index)
            self._hca(index)
        self.put("sys/class/net/ib0/mtu", "4092\n")
        self.put("sys/class/net/ib0/operstate", "up\n")

    def put(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def _gpu(self, index: int) -> None:
        pci = f"0000:{0x10 + index:02x}:00.0"
        device = f"sys/bus/pci/devices/{pci}"
        self.put(f"{device}/vendor", "0x10de\n")
        self.put(f"{device}/class", "0x030200\n")
        self.put(f"{device}/numa_node", f"{index // 2}\n")
        driver = self.root / "sys/bus/pci/drivers/nvidia"
        driver.mkdir(parents=True, exist_ok=True)
        (self.root / device / "driver").symlink_to("../../drivers/nvidia")
        (driver / pci).symlink_to(f"../../devices/{pci}")
        self.put(
            f"proc/driver/nvidia/gpus/{pci}/information",
            f"Model:           NVIDIA A100-SXM4-80GB\nBus Location:    {pci}\n",
        )

    def _hca(self, index: int) -> None:
        port = f"sys/class/infiniband/mlx5_{index}/ports/1"
        self.put(f"{port}/state", "4: ACTIVE\n")
        self.put(f"{port}/phys_state", "5: LinkUp\n")
        self.put(f"{port}/rate", "200 Gb/sec (4X HDR)\n")
        self.put(f"{port}/link_layer", "InfiniBand\n")


Report = dict[str, list[dict[str, Any]]]


class Recorded:
    """Trees of three nodes, and ``doctor --json`` over them."""

    def __init__(
        self, parent: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.nodes = {name: Tree(parent / "trees", name) for name in ("n1", "n2", "n3")}
        self._capsys = capsys
        sites = parent / "sites"
        sites.mkdir()
        (sites / "recorded.yaml").write_text(SITE)
        monkeypatch.setenv("EXASLURM_SITE_CONFIG", str(sites))

    def doctor(self) -> tuple[int, Report]:
        """Exit code, and checks by host."""
        words = [word for tree in self.nodes.values() for word in ("--root", str(tree.root))]
        code = run(["doctor", "--site", "recorded", "--json", *words])
        report = json.loads(self._capsys.readouterr().out)
        assert report["schema"] == "exaslurm/doctor/2"
        return code, {host["host"]: host["checks"] for host in report["hosts"]}
