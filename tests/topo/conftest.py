"""The recorded machines of the data folder, unpacked once."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from exaslurm.core.topology import NodeTopology
from exaslurm.topo.source import read_any

# Most of a tree: thousands of files that say nothing of where things are.
UNUSED = {
    "hugepages", "cpuidle", "cpufreq", "thermal_throttle", "power", "cpuset", "statistics",
    "queues", "index0", "index1", "index2", "memory_side_cache", "microcode", "tty", "usb",
}  # fmt: skip


@pytest.fixture(scope="session")
def folder() -> Path:
    data = os.environ.get("EXASLURM_DATA")
    if not data:
        pytest.skip("EXASLURM_DATA is not set: no recorded machines")
    return Path(data) / "topologies"


@pytest.fixture(scope="session")
def roots(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Archive -> the directory with its ``sys`` and ``proc``."""
    found = {}
    for archive in sorted(folder.glob("*.tar.bz2")):
        place = tmp_path_factory.mktemp("recorded")
        with tarfile.open(archive) as tar:
            wanted = [part for part in tar.getmembers() if not UNUSED & set(part.name.split("/"))]
            # Python before 3.11.4 has no filters.
            how = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            tar.extractall(place, wanted, **how)
        (found[archive.name],) = place.iterdir()
    return found


@pytest.fixture(scope="session")
def unpacked(roots: dict[str, Path]) -> dict[str, NodeTopology]:
    return {name: read_any(root) for name, root in roots.items()}
