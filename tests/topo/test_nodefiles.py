"""The nodes of real centres: every value has its page, and the bindings fit the topology."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from exaslurm.topo.nearness import islands, nearest_hcas, nearness
from tests.tools.nodefiles import NodeFile, load, names


@pytest.fixture(params=names())
def node(request: pytest.FixtureRequest) -> NodeFile:
    return load(request.param)


def rows(value: Any, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Sections, and the rows of their tables."""
    for key, part in value.items():
        if key in ("pages", "name", "arch"):
            continue
        for index, row in enumerate(part) if isinstance(part, list) else [(None, part)]:
            where = f"{path}{key}" if index is None else f"{path}{key}[{index}]"
            yield where, row
            for number, device in enumerate(row.get("devices", ())):
                yield f"{where}.devices[{number}]", device


def test_every_value_has_its_page(node: NodeFile) -> None:
    pages = node.raw["pages"]
    assert all(page["url"].startswith("https://") for page in pages.values())
    for where, row in rows(node.raw):
        assert row.get("page") in pages or row.get("derived"), where


def test_there_are_five_kinds() -> None:
    assert names() == ["dgx-h100", "frontier", "gh200-quad", "lumi-g", "perlmutter"]


def test_cpus_belong_to_one_numa_node(node: NodeFile) -> None:
    numa = [cpu for part in node.topology.numa for cpu in part.cpus]
    assert sorted(numa) == list(node.topology.cpus)
    by_index = {part.index: part for part in node.topology.numa}
    for core in node.topology.cores:
        assert core.numa is not None
        assert set(core.cpus) <= set(by_index[core.numa].cpus)


def test_the_pages_bindings_are_near(node: NodeFile) -> None:
    """What a page tells people to type is near on the node that the page describes."""
    topology = node.topology
    gpus = {gpu.index: gpu for gpu in topology.gpus}
    by_index = {part.index: part for part in topology.numa}
    seen: set[int] = set()
    for replica in node.expected:
        for index in replica.gpus:
            assert gpus[index].numa == replica.numa
            if replica.hca is not None:
                near = nearest_hcas(gpus[index], topology.hcas)
                assert [hca.name for hca in near] == [replica.hca]
                assert nearness(gpus[index], near[0]) in ("PIX", "NODE")
        assert replica.numa in {part.index for part in topology.memory_nodes}
        if replica.cores is not None:
            assert len(replica.cores) == node.cores_per_replica
            assert replica.first_cpu == min(replica.cores)
            assert set(replica.cores) <= set(by_index[replica.numa or 0].cpus)
            assert not set(replica.cores) & (seen | set(node.reserved))
            assert len({core.l3 for core in topology.cores if core.cpus[0] in replica.cores}) <= 2
            seen |= set(replica.cores)
    assert len(node.expected) == len(topology.gpus)


def test_lumis_map_and_masks_say_the_same() -> None:
    node = load("lumi-g")
    mapped = node.raw["expected"]["map_cpu"]
    assert mapped == [49, 57, 17, 25, 1, 9, 33, 41]
    assert [replica.first_cpu for replica in node.expected] == mapped
    assert [min(replica.cores or ()) for replica in node.expected] == mapped


def test_perlmutter_counts_the_other_way_round() -> None:
    topology = load("perlmutter").topology
    assert [gpu.numa for gpu in topology.gpus] == [3, 2, 1, 0]


def test_the_gpus_memory_is_no_place_for_a_process() -> None:
    topology = load("gh200-quad").topology
    assert [part.index for part in topology.memory_nodes] == [0, 1, 2, 3]
    assert [gpu.memory_node for gpu in topology.gpus] == [4, 12, 20, 28]


def test_links_join_what_belongs_together() -> None:
    assert islands(load("frontier").topology) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert islands(load("dgx-h100").topology) == (tuple(range(8)),)
