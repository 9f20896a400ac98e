"""Replicas and nodes are let go without a request lost, and come up in the best place."""

from __future__ import annotations

import pytest

from exaslurm.controller.cell import Cell
from exaslurm.controller.drain import check_known, drain_nodes, drain_replicas
from exaslurm.controller.leaving import LEARN_S
from exaslurm.controller.memory import ControllerMemory
from exaslurm.core.codec import dumps, loads
from exaslurm.errors import AllocationError
from tests.controller.conftest import make_marker
from tests.controller.played import Played


def serving(**options: object) -> Played:
    played = Played(**options)
    played.until(played.all_ready)
    return played


def drain_node(played: Played, node: str, reason: str = "drained by exa1") -> None:
    drain_nodes(played.cell, [node], reason, wall_s=5000.0, excluded_s=3600.0)


# -- one replica


def test_a_replica_is_out_of_the_table_at_once_and_its_engine_goes_on_until_all_know() -> None:
    played = serving()
    drain_replicas(played.cell, ["c000-r0001"], "drained by exa1: slow", played.now)
    replica = played.cell.replicas["c000-r0001"]
    old = replica.binding.node
    assert (replica.state, replica.cause) == ("draining", "drained by exa1: slow")
    assert not replica.record({}).ready
    played.run(LEARN_S - 1)
    assert played.running("c000-r0001") == [old]
    assert old in {node for node, name in played.started if name == "c000-r0001"}
    assert "c000-r0001" in {place.id for place in played.cell.book.get(old).engines}
    played.step()
    assert "c000-r0001" not in {place.id for place in played.cell.book.get(old).engines}


def test_it_is_started_anew_on_another_node_that_has_room() -> None:
    played = serving()
    before = played.where()
    drain_replicas(played.cell, ["c000-r0001"], "x", played.now)
    played.until(lambda: played.all_ready())
    after = played.where()
    assert after["c000-r0001"] != before["c000-r0001"]
    assert {k: v for k, v in after.items() if k != "c000-r0001"} == {
        k: v for k, v in before.items() if k != "c000-r0001"
    }
    assert played.cell.replicas["c000-r0001"].cause is None


def test_where_no_other_node_has_room_it_comes_back_to_its_own() -> None:
    played = serving(replicas=3, most=1)
    before = played.where()
    drain_replicas(played.cell, ["c000-r0001"], "x", played.now)
    played.until(played.all_ready)
    assert played.where() == before
    assert played.started.count((before["c000-r0001"], "c000-r0001")) == 2


def test_the_place_is_taken_again_only_when_nothing_is_left_there() -> None:
    played = serving(replicas=3, most=1)
    played.drain_s = 25.0
    drain_replicas(played.cell, ["c000-r0001"], "x", played.now)
    assert played.until(played.all_ready) >= LEARN_S + 25.0


def test_unknown_names_are_refused_with_those_that_there_are() -> None:
    played = serving()
    with pytest.raises(AllocationError, match="no replica 'r9' here; there are c000-r0000, c000-r"):
        check_known(played.cell, ["c000-r0000", "r9"], [])
    with pytest.raises(AllocationError, match="no node 'n9' here; there are n1, n2, n3, n4"):
        check_known(played.cell, [], ["n9"])


def test_a_second_word_changes_nothing() -> None:
    played = serving()
    drain_replicas(played.cell, ["c000-r0001"], "first", played.now)
    played.run(2)
    drain_replicas(played.cell, ["c000-r0001"], "second", played.now)
    assert played.cell.replicas["c000-r0001"].cause == "first"
    played.until(played.all_ready)


def test_a_lost_node_does_not_hold_a_drain_up() -> None:
    played = serving()
    node = played.where()["c000-r0001"]
    drain_replicas(played.cell, ["c000-r0001"], "x", played.now)
    played.dead = {node}
    played.until(lambda: played.cell.replicas["c000-r0001"].state == "ready")
    assert played.where()["c000-r0001"] != node


# -- a controller that is started again meanwhile


def restarted(played: Played) -> Played:
    """The same nodes under a new controller, with what the old one wrote down."""
    before = played.cell
    assert before.binding is not None
    memory = loads(ControllerMemory, dumps(before.memory(played.now)), where="test")
    played.cell = Cell(before.plan, make_marker(before.plan), generation=1, now=played.now)
    played.cell.recall(before.binding, memory, played.now)
    return played


@pytest.mark.parametrize("seconds", range(12))
def test_a_drain_outlives_the_controller(seconds: int) -> None:
    played = serving()
    before = played.where()["c000-r0001"]
    played.drain_s = 4.0
    drain_replicas(played.cell, ["c000-r0001"], "x", played.now)
    played.run(seconds)
    restarted(played)
    played.until(lambda: played.cell.replicas["c000-r0001"].state == "ready")
    played.until(lambda: played.running("c000-r0001") == [played.where()["c000-r0001"]])
    assert played.where()["c000-r0001"] != before
    # The engine that was to go was not started a second time.
    assert played.started.count((before, "c000-r0001")) == 1


# -- a node


def test_a_drained_node_carries_nothing_and_nobody_is_missed_meanwhile() -> None:
    played = serving(replicas=3)
    node = played.where()["c000-r0001"]
    drain_node(played, node)
    played.never_short.clear()
    played.until(lambda: node not in played.where().values())
    played.until(lambda: not any(node in played.running(r.id) for r in played.replicas()))
    assert min(played.never_short) == 3
    assert played.all_ready()
    (state,) = [item for item in played.cell.state(played.now, 1).nodes if item.node == node]
    assert (state.state, state.cause) == ("drained", "drained by exa1")
    assert node not in played.cell.wanted_in_ray(played.now)
    assert played.cell.book.get(node).engines == ()


def test_what_it_relieves_goes_on_until_routers_know() -> None:
    played = serving(replicas=3)
    node = played.where()["c000-r0001"]
    drain_node(played, node)
    played.until(lambda: played.where()["c000-r0001"] != node)
    assert played.running("c000-r0001") == sorted([node, played.where()["c000-r0001"]])
    played.run(LEARN_S - 2)
    assert node in played.running("c000-r0001")
    played.run(4)
    assert node not in played.running("c000-r0001")


def test_without_room_elsewhere_a_replica_leaves_and_waits() -> None:
    played = serving(replicas=3, most=1)
    node = played.where()["c000-r0001"]
    drain_node(played, node)
    played.run(60)
    replica = played.cell.replicas["c000-r0001"]
    assert (replica.state, replica.cause) == ("pending", "drained by exa1")
    assert played.running("c000-r0001") == []
    assert [r.state for r in played.replicas()].count("ready") == 2


def test_a_successor_that_does_not_come_up_is_given_up() -> None:
    played = serving(replicas=3)
    node = played.where()["c000-r0001"]
    played.broken = lambda where, replica: replica == "c000-r0001" and where != node
    drain_node(played, node)
    played.run(30)
    assert played.running("c000-r0001") != [node]
    assert played.cell.replicas["c000-r0001"].state in ("failed", "pending")
    played.broken = lambda where, replica: False
    played.until(played.all_ready, 300)


def test_a_replica_that_dies_while_its_successor_comes_up_is_succeeded() -> None:
    played = serving(replicas=3)
    node = played.where()["c000-r0001"]
    played.load_s = 20.0
    drain_node(played, node)
    played.run(3)
    played.broken = lambda where, replica: where == node
    played.until(played.all_ready)
    assert played.where()["c000-r0001"] != node


@pytest.mark.parametrize("seconds", range(9))
def test_the_drain_of_a_node_outlives_the_controller(seconds: int) -> None:
    played = serving(replicas=3)
    node = played.where()["c000-r0001"]
    drain_node(played, node)
    played.run(seconds)
    restarted(played)
    played.until(lambda: played.all_ready() and node not in played.where().values())
    played.until(lambda: not any(node in played.running(r.id) for r in played.replicas()))


def test_all_nodes_drained_at_once_carry_nothing() -> None:
    played = serving(replicas=3)
    for node in ("n2", "n3", "n4"):
        drain_node(played, node)
    played.until(lambda: not any(played.running(r.id) for r in played.replicas()))
    assert {replica.state for replica in played.replicas()} == {"pending"}
