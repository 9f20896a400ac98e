"""Tree, tables and SVG: what is on the node is in the picture, with who uses it."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

import pytest

from exaslurm.core.binding import CellBinding, ReplicaBinding
from exaslurm.core.topology import Gpu, NodeTopology
from exaslurm.errors import UserError
from exaslurm.topo.replicas import replicas_on
from exaslurm.topo.svg import svg
from exaslurm.topo.tables import gpu_table, hca_table, matrix, tables
from exaslurm.topo.tree import tree
from tests.tools.nodefiles import NodeFile, load, names

SPACE = "{http://www.w3.org/2000/svg}"


@pytest.fixture(params=names())
def node(request: pytest.FixtureRequest) -> NodeFile:
    return load(request.param)


def binding(node: NodeFile, host: str | None = None) -> CellBinding:
    return CellBinding(
        deployment="d",
        cell="c000",
        plan_hash="x",
        replicas=tuple(
            ReplicaBinding(
                id=f"c000-r{i:04d}", model="m<&>", shard="base", node=host or node.topology.host,
                address="10.0.0.1", port=20020 + i, slot=i, cores=part.cores or (), pinned=True,
                mem_nodes=(part.numa or 0,), gpus=tuple(map(str, part.gpus)),
                hca=f"{part.hca}:1" if part.hca else None,
            )
            for i, part in enumerate(node.expected)
        ),
    )  # fmt: skip


def test_the_tree_has_everything(node: NodeFile) -> None:
    topology = node.topology
    replicas = replicas_on(binding(node), None, topology)
    text = tree(topology, replicas)
    assert text.startswith(f"{topology.host}: {len(topology.gpus)} GPUs")
    for gpu in topology.gpus:
        assert re.search(rf"GPU {gpu.index} .*\[c000-r{gpu.index:04d}\]", text)
    for hca in topology.hcas:
        assert hca.name in text
    for domain in topology.numa:
        assert f"NUMA {domain.index}" in text
    for part in node.expected:
        if part.cores:
            assert f"CPUs {part.cores[0]}-{part.cores[-1]}" in text


def test_a_device_is_below_its_numa_node() -> None:
    lines = tree(load("frontier").topology).splitlines()
    above = None
    found = {}
    for line in lines:
        if match := re.search(r"NUMA (\d)", line):
            above = int(match.group(1))
        if match := re.search(r"GPU (\d)", line):
            found[int(match.group(1))] = above
    assert [found[index] for index in range(8)] == [3, 3, 1, 1, 0, 0, 2, 2]


def test_tables(node: NodeFile) -> None:
    replicas = replicas_on(binding(node), None, node.topology)
    for table in tables(node.topology, replicas):
        assert all(len(row) == len(table.header) for row in table.rows)
        assert all(isinstance(cell, str) for row in table.rows for cell in row)
    assert len(gpu_table(node.topology).rows) == len(node.topology.gpus)
    assert len(hca_table(node.topology).rows) == len(node.topology.hcas)


def test_the_matrix() -> None:
    rows = {row[0]: row[1:] for row in matrix(load("gh200-quad").topology).rows}
    assert rows["GPU1"] == ("NV6", "X", "NV6", "NV6", "SYS", "NODE", "SYS", "SYS", "72-143")
    rows = {row[0]: row[1:9] for row in matrix(load("frontier").topology).rows}
    assert rows["GPU0"] == ("X", "XGMI4", "SYS", "SYS", "SYS", "SYS", "SYS", "SYS")


def test_the_picture_is_well_formed_and_inside_its_frame(node: NodeFile) -> None:
    replicas = replicas_on(binding(node), None, node.topology)
    root = ElementTree.fromstring(svg(node.topology, replicas))
    width, height = (float(root.get(name, "0")) for name in ("width", "height"))
    boxes = root.findall(f"{SPACE}rect")
    for box in boxes:
        x, y, w, h = (float(box.get(name, "0")) for name in ("x", "y", "width", "height"))
        assert x + w <= width
        assert y + h <= height
    words = [text.text or "" for text in root.findall(f"{SPACE}text")]
    for gpu in node.topology.gpus:
        assert any(word.startswith(f"GPU {gpu.index} ") for word in words)
    for core in node.topology.cores:
        assert str(core.cpus[0]) in words
    # The model's name needs escaping; the legend has it whole.
    assert any("m<&>/base" in word for word in words)


def test_cores_have_the_colour_of_their_replica() -> None:
    node = load("lumi-g")
    replicas = replicas_on(binding(node), None, node.topology)
    root = ElementTree.fromstring(svg(node.topology, replicas))
    fills: dict[str, str] = {}
    for box in root.findall(f"{SPACE}rect"):
        title = box.find(f"{SPACE}title")
        if title is not None and (title.text or "").startswith("CPUs "):
            fills[(title.text or "").split(",")[0]] = box.get("fill", "")
    colour = {part.first_cpu: fills[f"CPUs {part.first_cpu}"] for part in node.expected}
    assert len(set(colour.values())) == len(node.expected)
    for part in node.expected:
        for cpu in part.cores or ():
            assert fills[f"CPUs {cpu}"] == colour[part.first_cpu]
    assert {fills[f"CPUs {cpu}"] for cpu in (0, 8, 16)} == {"#ffffff"}


def test_boxes_of_different_numa_nodes_do_not_overlap(node: NodeFile) -> None:
    root = ElementTree.fromstring(svg(node.topology))
    outer = [
        tuple(float(box.get(name, "0")) for name in ("x", "y", "width", "height"))
        for box in root.findall(f"{SPACE}rect")
        if box.get("fill") == "#f4f4f4"
    ]
    for (ax, ay, aw, ah), (bx, by, bw, bh) in itertools.combinations(outer, 2):
        assert ax + aw <= bx or bx + bw <= ax or ay + ah <= by or by + bh <= ay


def test_a_node_of_which_nothing_is_known() -> None:
    nothing = NodeTopology(host="n1")
    assert tree(nothing) == "n1: nothing known"
    assert tables(nothing) == ()
    ElementTree.fromstring(svg(nothing))


def test_the_replicas_of_another_node() -> None:
    node = load("perlmutter")
    cell = binding(node, host="nid001")
    assert len(replicas_on(cell, None, node.topology)) == 4  # the only node there is
    with pytest.raises(UserError, match="no replica on node 'nid002'; it has nid001"):
        replicas_on(cell, "nid002", node.topology)
    two = CellBinding(
        deployment="d", cell="c", plan_hash="x",
        replicas=cell.replicas + binding(node, host="nid002").replicas,
    )  # fmt: skip
    with pytest.raises(UserError, match="which node; it has nid001, nid002"):
        replicas_on(two, None, node.topology)


def test_gpus_named_by_uuid() -> None:
    node = load("perlmutter")
    gpus = tuple(
        Gpu(index=i, vendor="nvidia", uuid=f"GPU-{letter}") for i, letter in enumerate("abcd")
    )
    topology = NodeTopology(host="n", gpus=gpus)
    cell = binding(node, host="n")
    named = CellBinding(
        deployment="d", cell="c", plan_hash="x",
        replicas=tuple(
            ReplicaBinding(
                id=replica.id, model="m", shard="s", node="n", address="a", port=1, slot=0,
                cores=(), pinned=True, mem_nodes=(), gpus=(f"GPU-{'abcd'[3 - i]}",), hca=None,
            )
            for i, replica in enumerate(cell.replicas)
        ),
    )  # fmt: skip
    assert [part.gpus for part in replicas_on(named, "n", topology)] == [(3,), (2,), (1,), (0,)]
