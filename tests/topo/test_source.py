"""Whatever somebody has is read, or it is said what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exaslurm.errors import UserError
from exaslurm.topo.report import report
from exaslurm.topo.source import read_any
from exaslurm.topo.sysfs import read_root
from tests.tools.nodefiles import load, names
from tests.topo.test_hwloc_xml import BITS, modern
from tests.topo.test_nccl_xml import DUMP
from tests.topo.trees import make_tree


@pytest.mark.parametrize(
    ("name", "text", "gpus"),
    [("a.xml", modern("3.0", BITS), 2), ("b.xml", DUMP, 2)],
)
def test_files(tmp_path: Path, name: str, text: str, gpus: int) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert len(read_any(path).gpus) == gpus


def test_trees(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "unpacked" / "node")
    known = read_root(root)
    for place in (root, root / "sys", tmp_path / "unpacked"):
        topology = read_any(place)
        assert (topology.cores, topology.gpus, topology.hcas) == (
            known.cores, known.gpus, known.hcas,
        )  # fmt: skip


@pytest.mark.parametrize("name", names())
def test_the_report_is_read_again(tmp_path: Path, name: str) -> None:
    topology = load(name).topology
    path = tmp_path / "node.json"
    path.write_text(json.dumps(report(topology)))
    assert read_any(path) == topology


def test_the_report_says_what_is_near() -> None:
    data = report(load("dgx-h100").topology)
    assert [entry["hcas"] for entry in data["nearest_hcas"]][:2] == [["mlx5_0"], ["mlx5_3"]]
    assert {entry["nearness"] for entry in data["nearest_hcas"]} == {"PIX"}
    assert data["islands"] == [list(range(8))]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("plain text", "neither XML nor JSON"),
        ("<html/>", "unknown kind"),
        ("{", "not JSON"),
        ("<a>" * 40 + "</a>" * 40, "unknown kind"),
        ('{"schema": "exaslurm/topology/9"}', "exaslurm/topology/1"),
        ('{"schema": "exaslurm/topology/1", "topology": {"host": 3}}', "topology.host"),
        ('<topology><object type="Machine" os_index="many"/></topology>', "many"),
        ('<system><cpu numaid="0" affinity="zz"/></system>', "zz"),
    ],
)
def test_other_files(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    with pytest.raises(UserError, match=says) as caught:
        read_any(path)
    assert caught.value.remedy


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read"):
        read_any(tmp_path / "none")
    with pytest.raises(UserError, match="no tree"):
        read_any(tmp_path)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not a text file"):
        read_any(tmp_path / "bytes")
