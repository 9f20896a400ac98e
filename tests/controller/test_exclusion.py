"""A node that fails a check which the others pass carries nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from exaslurm.controller.cell import Cell
from exaslurm.controller.exclude import Exclusions
from exaslurm.controller.replace import moves_due
from exaslurm.core.cell import AgentReport
from exaslurm.core.checks import NodeChecks, failed, warned
from exaslurm.core.codec import loads
from exaslurm.core.exclusion import ExcludedNode, ExcludedNodes
from tests.controller.conftest import WORKERS, bind, engine, make_cell, report

BAD = failed("storage.shared", "/data is not there", "mount it")


def examined(node: str, *checks: object, checking: bool = False) -> AgentReport:
    found = None if checking else NodeChecks(host=node, checks=tuple(checks))  # type: ignore[arg-type]
    return dataclasses.replace(report(node), checking=checking, preflight=found)


def reported(cell: Cell, now: float, *bad: str) -> None:
    for node in ("n1", *WORKERS):
        cell.on_report(examined(node, *([BAD] if node in bad else [])), now)


def test_a_cell_waits_for_the_examination() -> None:
    cell = make_cell()
    reported(cell, 1.0)
    cell.on_report(examined("n3", checking=True), 1.5)
    assert cell.wants_binding(2.0) is None
    assert [state.state for state in cell.state(2.0, 1).nodes] == [
        "joined", "joined", "checking", "joined",
    ]  # fmt: skip


def test_a_bad_node_is_left_out_and_named() -> None:
    cell = make_cell(replicas=3, min_nodes=2)
    reported(cell, 1.0, "n3")
    bind(cell, 1.0)
    assert cell.binding is not None
    assert {place.node for place in cell.binding.replicas} == {"n2", "n4"}
    assert cell.wanted_in_ray(1.0) == {"n1", "n2", "n4"}
    cell.advance(1.0)
    assert cell.book.get("n3").engines == ()
    state = cell.state(1.0, 1)
    (left_out,) = [node for node in state.nodes if node.state == "excluded"]
    assert (left_out.node, left_out.cause) == ("n3", "storage.shared: /data is not there")
    assert state.notes[0] == "n3 is left out: storage.shared: /data is not there (mount it)"
    assert state.cause is None


def test_a_warning_leaves_nobody_out() -> None:
    cell = make_cell()
    reported(cell, 1.0)
    cell.on_report(examined("n3", warned("clock.sync", "no", "run ntpd")), 1.0)
    assert len(cell.wants_binding(1.0) or ()) == 4


def test_what_all_nodes_lack_leaves_nobody_out() -> None:
    cell = make_cell()
    reported(cell, 1.0, *WORKERS)
    bind(cell, 1.0)
    assert cell.members.exclusions() == []
    assert cell.members.unfit(1.0) == []
    # Nor does it later, when one of them is examined again and fine.
    cell.on_report(examined("n4"), 2.0)
    assert cell.members.exclusions() == []


def test_nodes_that_differ_are_named_and_used() -> None:
    cell = make_cell()
    for node in ("n1", *WORKERS):
        version = "535.104" if node == "n3" else "570.86"
        alike = {"uniform.gpu_driver": "" if node == "n1" else f"nvidia {version}"}
        told = dataclasses.replace(
            report(node), preflight=NodeChecks(host=node, checks=(), alike=alike)
        )
        cell.on_report(told, 1.0)
    assert len(cell.wants_binding(1.0) or ()) == 4
    assert cell.state(1.0, 1).notes == (
        "n3 differs: uniform.gpu_driver: nvidia 535.104; nvidia 570.86 on 2 other nodes",
    )


def test_too_few_good_nodes_end_the_cell_at_once() -> None:
    cell = make_cell(min_nodes=3)
    reported(cell, 1.0, "n3")
    assert cell.wants_binding(1.0) is None
    assert cell.phase(1.0) == "failed"
    cause = cell.cause(1.0)
    assert cause is not None
    assert "2 of 3 nodes can be used, at least 3 are needed" in cause
    assert "n3 is left out: storage.shared: /data is not there" in cause


def test_nothing_moves_to_a_node_that_is_left_out() -> None:
    cell = make_cell(replicas=2, min_nodes=2, most=1)
    reported(cell, 1.0, "n4")
    bind(cell, 1.0)
    cell.advance(1.0)
    (first, _) = cell.replicas.values()
    for attempt in range(5):
        failing = engine(first.id, "failed", restarts=attempt + 1)
        again = dataclasses.replace(examined(first.binding.node), engines=(failing,))
        cell.on_report(again, 2.0 + attempt)
    assert moves_due(cell, 8.0) == []


def test_running_replicas_stay_whatever_is_found_later() -> None:
    cell = make_cell()
    reported(cell, 1.0)
    bind(cell, 1.0)
    cell.on_report(examined("n3", BAD), 5.0)
    assert cell.members.exclusions() == []


@pytest.mark.parametrize("silent", ["n3"])
def test_a_node_that_never_comes_is_unfit_too(silent: str) -> None:
    cell = make_cell(min_nodes=2)
    for node in ("n1", "n2", "n4"):
        cell.on_report(examined(node), 1.0)
    assert cell.members.unfit(1.0) == []
    assert cell.members.unfit(31.0) == [(silent, "no report from the node agent in 30 s")]


def test_it_is_written_down_with_an_end(tmp_path: Path) -> None:
    cell = make_cell(min_nodes=2)
    reported(cell, 1.0, "n3")
    kept: dict[Path, str] = {}
    book = Exclusions(tmp_path / "c000.json")
    book.note(cell, 1.0, 5000.0, kept.__setitem__)
    book.note(cell, 2.0, 6000.0, kept.__setitem__)  # found again: nothing new
    found = loads(ExcludedNodes, kept[tmp_path / "c000.json"], where="it")
    (item,) = found.nodes
    assert (item.node, item.job_id, item.since_s) == ("n3", "41", 5000.0)
    assert item.reason == "storage.shared: /data is not there"
    assert found.current(5000.0 + 86399) == (item,)
    assert found.current(5000.0 + 86401) == ()


def test_a_node_that_did_not_report_is_left_out_for_an_hour_and_once(tmp_path: Path) -> None:
    cell = make_cell(min_nodes=2, nodes_s=30.0)
    for node in ("n1", "n2", "n4"):
        cell.on_report(examined(node), 1.0)
    kept: dict[Path, str] = {}
    book = Exclusions(tmp_path / "c000.json")
    book.note(cell, 31.0, 5000.0, kept.__setitem__)
    found = loads(ExcludedNodes, kept[tmp_path / "c000.json"], where="it")
    assert [(item.node, item.until_s) for item in found.nodes] == [("n3", 5000.0 + 3600)]
    book.note(cell, 4000.0, 9000.0, kept.__setitem__)  # the same job, an hour later
    assert loads(ExcludedNodes, kept[tmp_path / "c000.json"], where="it").nodes == ()


def test_earlier_findings_are_kept_until_their_end() -> None:
    old = ExcludedNode(node="n9", reason="r", job_id="1", since_s=0.0, until_s=100.0)
    new = ExcludedNode(node="n3", reason="s", job_id="2", since_s=50.0, until_s=150.0)
    book = ExcludedNodes(nodes=(old,))
    assert book.joined([new], 60.0).nodes == (new, old)
    assert book.joined([new], 120.0).nodes == (new,)
