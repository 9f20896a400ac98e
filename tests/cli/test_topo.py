"""``exaslurm topo``: what the shell gets."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from exaslurm.core.codec import dumps
from exaslurm.topo.report import report
from tests.tools.nodefiles import load
from tests.topo.test_pictures import binding


@pytest.fixture
def node(tmp_path: Path) -> Path:
    path = tmp_path / "node.json"
    path.write_text(json.dumps(report(load("frontier").topology)))
    return path


@pytest.fixture
def cell(tmp_path: Path) -> Path:
    path = tmp_path / "binding.json"
    path.write_text(dumps(binding(load("frontier"))))
    return path


def test_this_machine(exaslurm: Any) -> None:
    done = exaslurm("topo")
    assert (done.code, done.err) == (0, "")
    assert "NUMA" in done.out or "cores" in done.out
    data = json.loads(exaslurm("topo", "--json").out)
    assert data["schema"] == "exaslurm/topology/1"
    assert data["topology"]["cores"]


def test_a_file(exaslurm: Any, node: Path) -> None:
    assert "GPU 4 AMD Instinct MI250X 64 GiB 0000:d1:00.0" in exaslurm("topo", "--from", node).out
    tables = exaslurm("topo", "--from", node, "--table").out
    assert tables.splitlines()[0].split() == [
        "NUMA", "KIND", "MEMORY", "CORES", "CPUS", "DISTANCES",
    ]  # fmt: skip
    assert json.loads(exaslurm("topo", "--from", node, "--json").out) == json.loads(
        node.read_text()
    )


def test_replicas(exaslurm: Any, node: Path, cell: Path) -> None:
    out = exaslurm("topo", "--from", node, "--binding", cell).out
    assert "c000-r0004 m<&>/base: CPUs 1-7" in out
    data = json.loads(exaslurm("topo", "--from", node, "--binding", cell, "--json").out)
    assert [replica["gpus"] for replica in data["replicas"]] == [[i] for i in range(8)]


def test_pictures(exaslurm: Any, node: Path, cell: Path, tmp_path: Path) -> None:
    done = exaslurm("topo", "--from", node, "--binding", cell, "--svg", tmp_path / "a.svg")
    assert (done.code, done.out) == (0, "")
    assert "a.svg" in done.err
    assert (tmp_path / "a.svg").read_text().startswith("<svg ")


def test_png(exaslurm: Any, node: Path, tmp_path: Path) -> None:
    pytest.importorskip("cairosvg", reason="the extra 'picture' is not installed")
    assert exaslurm("topo", "--from", node, "--png", tmp_path / "a.png").code == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_png_without_the_library(
    exaslurm: Any, node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cairosvg", None)
    done = exaslurm("topo", "--from", node, "--png", tmp_path / "a.png")
    assert done.code == 2
    assert "exaslurm[picture]" in done.err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--from", "/none"], "cannot read /none"),
        (["--binding", "/none"], "cannot read /none"),
    ],
)
def test_wrong_use(exaslurm: Any, args: list[str], says: str) -> None:
    done = exaslurm("topo", *args)
    assert done.code == 2
    assert says in done.err
    assert "remedy" in done.err


def test_a_file_that_cannot_be_written(exaslurm: Any, node: Path, tmp_path: Path) -> None:
    done = exaslurm("topo", "--from", node, "--svg", tmp_path / "none" / "a.svg")
    assert done.code != 0
    assert "a.svg" in done.err
    assert "Traceback" not in done.err


def test_a_binding_of_another_node(exaslurm: Any, node: Path, cell: Path) -> None:
    done = exaslurm("topo", "--from", node, "--binding", cell, "--node", "nid1")
    assert done.code == 2
    assert "it has frontier" in done.err


def test_what_of_it_is_ours(exaslurm: Any) -> None:
    cpus = os.sched_getaffinity(0)
    if len(cpus) < 2:
        pytest.skip("one CPU cannot be a part of what there is")
    os.sched_setaffinity(0, {min(cpus)})
    try:
        done = exaslurm("topo")
    finally:
        os.sched_setaffinity(0, cpus)
    assert f"this process may use CPUs {min(cpus)}\n" in done.err
    assert "may use" not in exaslurm("topo", "--json").out
