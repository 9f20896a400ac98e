"""Whatever somebody has is read, or it is said what is wrong with it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from exaslurm.errors import UserError
from exaslurm.topo.report import report
from exaslurm.topo.source import read_any
from exaslurm.topo.svg import svg
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
    with pytest.raises(UserError, match="neither XML nor JSON"):
        read_any(tmp_path / "bytes")


def _json(**parts: object) -> bytes:
    data = {"schema": "exaslurm/topology/1", "topology": {"host": "n", **parts}}
    return json.dumps(data).encode()


NODE = {"index": 0, "kind": "cpu", "cpus": [0], "mem_mib": 1}
ENDLESS = (
    b'<topology><object type="Machine"><object type="NUMANode"/></object>'
    b'<distances latency_base="1e999"><latency value="1"/></distances></topology>'
)
LAUGH = "".join(f'<!ENTITY e{i + 1} "{f"&e{i};" * 10}">' for i in range(9))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (_json(links=[{"a": 0, "b": 3, "kind": "nvlink"}]), "GPUs 0 and 3 of 0"),
        (_json(cores=[{"cpus": [], "package": 0, "numa": 0}]), r"the CPUs \[\]"),
        (_json(cores=[{"cpus": [1], "package": 0, "numa": 0}] * 2), "CPU 1 is in 2 cores"),
        (_json(numa=[NODE, NODE]), "NUMA node 0 is there more than once"),
        (_json(numa=[{**NODE, "index": -1}]), "below 0"),
        (_json(numa=[{**NODE, "mem_mib": -1}]), "less than nothing"),
        (_json(numa=[{**NODE, "distances": [10, 20]}]), "2 distances to 1 nodes"),
        (_json(drives=[{"name": "d", "size_gib": float("inf")}]), "no finite number"),
        (b'<topology version="9.0"><object type="Machine"/></topology>', "format '9.0'"),
        (b'<topology version="2.0"/>', "no machine"),
        (ENDLESS, "infinity"),
        (f'<!DOCTYPE t [<!ENTITY e0 "laugh">{LAUGH}]><t>&e9;</t>'.encode(), "neither XML"),
        (b'<!DOCTYPE t [<!ENTITY x SYSTEM "file:///etc/passwd">]><t>&x;</t>', "undefined entity"),
        (b"<a>" * 100_000 + b"</a>" * 100_000, "unknown kind"),
        (
            b'<topology version="2.0">' + b'<object type="Group">' * 50_000
            + b"</object>" * 50_000 + b"</topology>",
            "recursion",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_a_node(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(UserError, match=says) as caught:
        read_any(path)
    assert caught.value.remedy


@pytest.mark.parametrize("encoding", ["iso-8859-1", "utf-16", "utf-8"])
def test_xml_in_its_own_encoding(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "node.xml"
    path.write_bytes(
        f'<?xml version="1.0" encoding="{encoding}"?><topology version="2.0">'
        '<object type="Machine"><info name="HostName" value="nöde"/></object></topology>'.encode(
            encoding
        )
    )
    assert read_any(path).host == "nöde"


def test_json_of_windows(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    path.write_bytes(b"\xef\xbb\xbf" + _json())
    assert read_any(path).host == "n"


def test_no_file_fills_the_memory() -> None:
    with pytest.raises(UserError, match="larger than"):
        read_any(Path("/dev/zero"))


def test_names_say_nothing_to_a_terminal(tmp_path: Path) -> None:
    gpu = {"index": 0, "vendor": "nvidia", "name": "\x1b]0;mine\x07 \ud800"}
    path = tmp_path / "node.json"
    path.write_bytes(_json(gpus=[gpu]))
    topology = read_any(path)
    assert topology.gpus[0].name == "\ufffd]0;mine\ufffd \ufffd"
    ElementTree.fromstring(svg(topology).encode())


def test_a_tree_with_links_to_themselves(tmp_path: Path) -> None:
    sys = make_tree(tmp_path) / "sys"
    known = read_any(tmp_path)
    for name in ("bus/pci/devices/0000:ff:00.0", "class/net/eth9", "class/infiniband/mlx5_9"):
        (sys / name).symlink_to(Path(name).name)
    topology = read_any(tmp_path)
    assert topology.gpus == known.gpus
    assert set(known.hcas) <= set(topology.hcas)


@pytest.mark.parametrize("cpus", ["0-9999999999", "some", "3-"])
def test_a_tree_with_an_odd_list_of_cpus(tmp_path: Path, cpus: str) -> None:
    sys = make_tree(tmp_path) / "sys"
    (sys / "devices/system/node/node0/cpulist").write_text(cpus)
    if cpus == "3-":
        assert read_any(tmp_path).numa[0].cpus == (3,)
        return
    with pytest.raises(UserError, match=cpus):
        read_any(tmp_path)


def test_what_may_not_be_looked_into_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_tree(tmp_path)
    known = read_any(root)
    look = os.stat

    def refuse(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if str(path).endswith("physfn"):
            raise PermissionError(13, "Permission denied", str(path))
        return look(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", refuse)
    assert read_any(root) == known
