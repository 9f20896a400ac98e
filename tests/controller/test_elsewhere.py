"""Where replicas go whose engines or nodes fail, and that they do not go round in circles."""

from __future__ import annotations

from exaslurm.agent.settings import Times
from exaslurm.controller.nodes import HEARTBEAT_S, SILENT_AFTER_S
from tests.controller.conftest import WORKERS
from tests.controller.played import Played


def one_node(**options: int) -> Played:
    played = Played(nodes=3, min_nodes=1, **options)
    played.until(played.all_ready)
    return played


def test_agents_report_as_often_as_controllers_expect() -> None:
    assert Times().report_s == HEARTBEAT_S
    assert SILENT_AFTER_S == 3 * HEARTBEAT_S


def test_a_replica_that_keeps_failing_goes_to_another_node() -> None:
    played = one_node()
    before = played.where()["c000-r0000"]
    played.broken = lambda node, replica: (node, replica) == (before, "c000-r0000")
    played.until(lambda: played.where()["c000-r0000"] != before and played.all_ready())


def test_the_other_slot_has_another_port_and_is_tried_once() -> None:
    played = one_node(replicas=1, most=4)
    (replica,) = played.replicas()
    home = replica.binding
    played.dead = {*WORKERS} - {home.node}
    played.run(20)
    played.bad_slots = {home.slot}
    played.until(lambda: replica.state == "ready" and replica.binding.slot != home.slot)
    assert replica.binding.node == home.node
    assert replica.binding.port != home.port
    assert replica.failed_places == ()  # it serves: forgiven
    played.bad_slots = set(range(16))
    played.run(120)
    tried = len(played.started)
    played.run(300)
    assert len(played.started) == tried  # no circles: its agent goes on trying


def test_what_an_agent_says_of_the_place_before_is_not_heard() -> None:
    played = one_node(replicas=1, most=4)
    (replica,) = played.replicas()
    played.dead = {*WORKERS} - {replica.binding.node}
    played.drain_s = 10.0
    played.run(20)
    played.bad_slots = {replica.binding.slot}
    played.until(lambda: replica.binding.slot != 0)
    played.run(5)
    assert replica.failures == 0
    played.until(played.all_ready)


def test_a_lost_node_that_comes_back_takes_what_is_without_a_place() -> None:
    played = one_node(replicas=3, most=1)
    node = played.where()["c000-r0001"]
    played.dead = {node}
    played.run(20)
    replica = played.cell.replicas["c000-r0001"]
    replica.unreachable = f"{node} is silent"  # what the probe finds
    played.run(60)
    assert replica.state == "failed"  # no other node has room
    played.dead = set()
    played.until(played.all_ready)
    assert played.where()["c000-r0001"] == node


def test_a_lost_node_that_comes_back_ends_what_has_moved() -> None:
    played = one_node(replicas=3)
    node = played.where()["c000-r0001"]
    played.dead = {node}
    played.run(20)
    played.cell.replicas["c000-r0001"].unreachable = f"{node} is silent"
    played.until(lambda: played.where()["c000-r0001"] != node)
    played.dead = set()
    played.until(lambda: node not in played.running("c000-r0001"))
    played.until(played.all_ready)
