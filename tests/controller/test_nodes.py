from __future__ import annotations

import dataclasses

import pytest

from exaslurm.controller.nodes import LOST_AFTER_S, SILENT_AFTER_S, Membership
from exaslurm.core.fabric import PortFigures
from exaslurm.errors import AllocationError
from tests.controller.conftest import WORKERS, make_marker, make_plan, report


def membership(**options: int) -> Membership:
    plan = make_plan(**options)
    return Membership(make_marker(plan), plan.cell("c000"), now=0.0, deadline_s=30.0)


def test_waits_for_every_node_by_count() -> None:
    members = membership()
    for node in ("n1", "n2", "n3"):
        members.on_report(report(node), 1.0)
        assert not members.settled(1.0)
    members.on_report(report("n4"), 1.0)
    assert members.settled(1.0)
    assert members.problem(1.0) is None


def test_goes_on_with_enough_nodes_when_the_time_is_over() -> None:
    members = membership(min_nodes=2)
    for node in ("n1", "n2", "n3"):
        members.on_report(report(node), 25.0)
    assert not members.settled(29.9)
    assert members.problem(29.9) is None
    assert members.settled(30.0)
    assert members.problem(30.0) == "n4: no report from the node agent in 30 s"


def test_does_not_go_on_with_too_few() -> None:
    members = membership(min_nodes=3)
    for node in ("n1", "n2"):
        members.on_report(report(node), 25.0)
    assert not members.settled(31.0)
    assert members.shortage() == ("component 1: 1 of 3 nodes reported, at least 3 are needed")


def test_the_diagnosis_of_a_missing_node_is_part_of_the_problem() -> None:
    members = membership()
    members.on_report(report("n1"), 1.0)
    members.nodes["n3"].cause = "its step has not started there"
    assert "its step has not started there" in str(members.problem(31.0))
    assert [node.name for node in members.late(25.0)] == list(WORKERS)
    assert members.late(5.0) == []


def test_a_report_from_elsewhere_is_refused() -> None:
    members = membership()
    with pytest.raises(AllocationError, match="n9"):
        members.on_report(report("n9"), 1.0)


def test_silent_then_lost_then_back() -> None:
    members = membership()
    members.on_report(report("n2"), 0.0)
    states = {state.node: state.state for state in members.states(SILENT_AFTER_S)}
    assert states["n2"] == "joined"
    assert states["n3"] == "expected"
    (silent,) = (s for s in members.states(SILENT_AFTER_S + 1) if s.node == "n2")
    assert silent.state == "silent"
    assert silent.cause == "no report for 16 s"
    (lost,) = (s for s in members.states(LOST_AFTER_S + 1) if s.node == "n2")
    assert lost.state == "lost"
    members.on_report(report("n2"), 70.0)
    (back,) = (s for s in members.states(71.0) if s.node == "n2")
    assert (back.state, back.cause) == ("joined", None)


def test_figures_of_the_network_are_those_of_nodes_that_report() -> None:
    members = membership()
    port = PortFigures(
        device="mlx5_0", port=1, fabric="infiniband", state="ACTIVE", rate_gbps=200.0,
        interval_s=10.0, congestion=0.4,
    )  # fmt: skip
    members.on_report(dataclasses.replace(report("n2"), fabric=(port,)), 0.0)
    (state,) = (s for s in members.states(SILENT_AFTER_S) if s.node == "n2")
    assert state.fabric == (port,)
    (silent,) = (s for s in members.states(SILENT_AFTER_S + 1) if s.node == "n2")
    assert silent.fabric == ()


def test_a_node_whose_task_ended_is_not_waited_for() -> None:
    members = membership(min_nodes=2)
    for node in ("n1", "n2", "n4"):
        members.on_report(report(node), 1.0)
    assert not members.settled(1.0)
    members.on_ended({"n3": "Exited with exit code 1", "n2": "came back", "n9": "not ours"})
    assert members.settled(1.0)
    assert members.problem(1.0) == (
        "n3: its task ended before it reported: Exited with exit code 1"
    )
    assert [node.name for node in members.late(1.0)] == ["n3"]
    assert [name for name, _ in members.unfit(1.0)] == ["n3"]


def test_a_cell_that_can_never_have_enough_nodes_knows_it_at_once() -> None:
    members = membership(min_nodes=3)
    for node in ("n1", "n2", "n4"):
        members.on_report(report(node), 1.0)
    assert members.hopeless(1.0) is None
    members.on_ended({"n3": "Killed"})
    assert members.hopeless(1.0) == (
        "component 1: 2 of 3 nodes reported, at least 3 are needed; "
        "n3: its task ended before it reported: Killed"
    )
