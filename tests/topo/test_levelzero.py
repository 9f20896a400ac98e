"""What Intel's library adds, from a stand-in for it: no such GPU is at hand in tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from exaslurm.core.topology import Gpu, NodeTopology
from exaslurm.topo.levelzero import ask, with_levelzero

SOURCE = Path(__file__).parent / "ze_standin.c"
# The bus shows them in this order, the library in the other.
TOPOLOGY = NodeTopology(
    host="n1",
    gpus=(
        Gpu(index=0, vendor="intel", pci="0000:6c:00.0", numa=1),
        Gpu(index=1, vendor="intel", pci="0000:18:00.0", numa=0),
    ),
)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler for the stand-in of libze_loader")
    folder = tmp_path_factory.mktemp("ze")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", folder / "libze_loader.so.1", SOURCE],
        check=True,
        timeout=60,
    )
    return folder


@pytest.fixture
def installed(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    # What a step of Slurm has: the probe asks for all the same.
    monkeypatch.setenv("ZE_AFFINITY_MASK", "0.1")


@pytest.mark.usefixtures("installed")
def test_cards_memory_tiles_and_links() -> None:
    found = with_levelzero(TOPOLOGY)
    first, second = found.topology.gpus
    assert (first.pci, first.numa, first.index) == ("0000:6c:00.0", 1, 0)
    assert (first.name, first.mem_mib) == ("Intel(R) Data Center GPU Max 1550", 128 * 1024)
    assert (first.tiles, second.tiles) == (2, 2)
    assert second.uuid == "000102030405060708090a0b0c0d0e0f"
    (link,) = found.topology.links
    assert (link.a, link.b, link.kind, link.lanes) == (0, 1, "xelink", 2)
    assert [gpu.pci for gpu in found.accessible or ()] == ["0000:18:00.0", "0000:6c:00.0"]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("how", ["none", "crash"])
def test_a_driver_that_is_missing_or_broken(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZE_STANDIN", how)
    found = with_levelzero(TOPOLOGY)
    assert (found.topology, found.accessible) == (TOPOLOGY, None)


def test_no_library(tmp_path: Path) -> None:
    # An empty file where the library would be: the dynamic loader refuses it.
    (tmp_path / "libze_loader.so.1").touch()
    assert ask({**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}) == []


def test_it_is_not_asked_about_other_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    def no(*_: object) -> object:
        raise AssertionError("asked")

    monkeypatch.setattr("exaslurm.topo.levelzero.ask", no)
    others = NodeTopology(host="n", gpus=(Gpu(index=0, vendor="nvidia"),))
    assert with_levelzero(others).topology == others
