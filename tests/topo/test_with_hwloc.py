"""hwloc itself, where it is installed, looks at the same trees: both have to see the same node."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from exaslurm.core.topology import NodeTopology
from exaslurm.topo.hwloc_xml import read_hwloc
from exaslurm.topo.sysfs import read_root, read_sysfs
from tests.topo.test_recorded import MACHINES
from tests.topo.trees import fill, make_tree

LSTOPO = shutil.which("lstopo-no-graphics") or shutil.which("lstopo")
pytestmark = pytest.mark.skipif(LSTOPO is None, reason="hwloc's lstopo is not installed")


def lstopo(root: Path | None = None) -> NodeTopology:
    """The export of the tree below ``root``, or of this machine."""
    environ = {**os.environ, "HWLOC_HIDE_ERRORS": "2"}
    if root is not None:
        environ |= {
            "HWLOC_FSROOT": str(root), "HWLOC_COMPONENTS": "linux,linuxio,stop",
            "HWLOC_THISSYSTEM": "0", "HWLOC_KEEP_NVIDIA_GPU_NUMA_NODES": "1",
        }  # fmt: skip
    assert LSTOPO is not None
    done = subprocess.run(
        [LSTOPO, "--of", "xml", "--whole-io", "--disallowed", "-"],
        env=environ, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return read_hwloc(done.stdout, where="lstopo")


def cores(topology: NodeTopology) -> list[tuple[object, ...]]:
    return [(core.cpus, core.package, core.numa, core.l3) for core in topology.cores]


def devices(topology: NodeTopology) -> list[tuple[object, ...]]:
    """Not their NUMA nodes: hwloc goes by the CPUs of the bus, as the firmware tells them, and
    leaves out what a driver says of its own device."""
    return [(hca.name, hca.fabric, hca.pci, hca.pci_path, hca.cpus) for hca in topology.hcas]


def test_this_machine() -> None:
    own, theirs = read_sysfs(), lstopo()
    assert [core[:3] for core in cores(own)] == [core[:3] for core in cores(theirs)]
    assert [node.cpus for node in own.numa] == [node.cpus for node in theirs.numa]


def mask(cpus: range | list[int]) -> str:
    return f"{sum(1 << cpu for cpu in cpus):08x}"


def with_masks(root: Path) -> Path:
    """hwloc reads the kernel's masks where we read its lists."""
    system = root / "sys/devices/system"
    fill(system, {"cpu/online": "0-15", "cpu/possible": "0-15", "node/online": "0-1"})
    for cpu in range(16):
        core = cpu % 8
        first, node = core // 2 * 2, core // 4 * 4
        fill(
            system / f"cpu/cpu{cpu}",
            {
                "topology/core_id": str(core),
                "topology/core_cpus": mask([core, core + 8]),
                "topology/package_cpus": mask(
                    [*range(node, node + 4), *range(node + 8, node + 12)]
                ),
                "cache/index3/type": "Unified",
                "cache/index3/size": "32768K",
                "cache/index3/shared_cpu_map": mask([first, first + 1, first + 8, first + 9]),
            },
        )
    for node in (0, 4):
        cpus = [*range(node, node + 4), *range(node + 8, node + 12)]
        fill(system / f"node/node{node // 4}", {"cpumap": mask(cpus)})
    return root


def test_a_node_of_our_own(tmp_path: Path) -> None:
    root = with_masks(make_tree(tmp_path / "node"))
    own, theirs = read_root(root), lstopo(root)
    assert cores(own) == cores(theirs)
    assert own.numa == theirs.numa


@pytest.mark.parametrize("name", sorted(name for name in MACHINES if name.endswith(".bz2")))
def test_recorded_machines(name: str, roots: dict[str, Path]) -> None:
    own, theirs = read_root(roots[name]), lstopo(roots[name])
    assert cores(own) == cores(theirs)
    # Of the CPUs of a node hwloc leaves out those that are not online.
    online = set(own.cpus)
    shown = [dataclasses.replace(n, cpus=tuple(sorted(set(n.cpus) & online))) for n in own.numa]
    assert tuple(shown) == theirs.numa
    assert devices(own) == devices(theirs)
    owners = {gpu.memory_node: gpu.pci for gpu in own.gpus if gpu.memory_node is not None}
    assert len(owners) == sum(node.kind == "device" for node in theirs.numa)
