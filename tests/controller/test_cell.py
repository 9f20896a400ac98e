"""The life of a cell, without I/O: what agents report, what they are told, what others see."""

from __future__ import annotations

import dataclasses

from exaslurm.controller.cell import Cell
from exaslurm.controller.nodes import SILENT_AFTER_S
from exaslurm.controller.replace import moves_due
from exaslurm.controller.replicas import MAX_FAILURES
from exaslurm.core.cell import RayNodeStatus
from tests.controller.conftest import (
    WORKERS,
    bind,
    engine,
    everybody,
    make_cell,
    make_marker,
    make_plan,
    report,
    serve_all,
)


def served(**options: int) -> Cell:
    cell = make_cell(**options)
    everybody(cell, 1.0)
    bind(cell, 1.0)
    serve_all(cell, 2.0)
    return cell


def node_of(cell: Cell, index: int = 0) -> str:
    return list(cell.replicas.values())[index].binding.node


def test_bring_up_without_ray() -> None:
    cell = make_cell()
    answer = cell.on_report(report("n1"), 0.5)
    assert (answer.engines, answer.ray, answer.stop) == ((), None, False)
    assert cell.phase(0.5) == "nodes"
    assert cell.wants_binding(0.5) is None
    everybody(cell, 1.0)
    bind(cell, 1.0)
    assert cell.phase(1.0) == "engines"
    assert {r.state for r in cell.replicas.values()} == {"pending"}
    told = {node: cell.on_report(report(node), 1.1) for node in ("n1", *WORKERS)}
    assert told["n1"].engines == ()
    assert [len(told[node].engines) for node in WORKERS] == [1, 1, 1]
    serve_all(cell, 2.0)
    assert cell.phase(2.0) == "serving"
    assert cell.cause(2.0) is None
    record = cell.record("http://h:1")
    assert all(replica.ready for replica in record.replicas)
    assert record.replicas[0].served_names == ("m", "m:a")
    assert record.replicas[0].simulated


def test_engines_wait_for_ray() -> None:
    cell = make_cell(ray=True)
    up = RayNodeStatus(state="up", epoch=1, seconds=0.5)
    everybody(cell, 1.0)
    answer = cell.on_report(report("n1", ray=up), 1.0)
    assert answer.ray is not None
    assert answer.ray.gcs_port == 20501
    bind(cell, 1.0)
    assert cell.phase(1.0) == "ray"
    assert cell.on_report(report("n2", ray=up), 1.2).engines == ()
    cell.ray.on_nodes(["n1", *WORKERS], cell.wanted_in_ray(2.0), 2.0)
    assert len(cell.on_report(report("n2", ray=up), 2.0).engines) == 1
    assert cell.state(2.0, 1).ray.state == "complete"


def test_engines_start_without_ray_when_it_is_late() -> None:
    cell = make_cell(ray=True)
    everybody(cell, 1.0)
    bind(cell, 1.0)
    everybody(cell, 50.0)
    assert cell.on_report(report("n2"), 60.9).engines == ()
    everybody(cell, 61.0)
    assert len(cell.on_report(report("n2"), 61.1).engines) == 1


def test_healthy_is_not_ready() -> None:
    cell = make_cell(replicas=1)
    everybody(cell, 1.0)
    bind(cell, 1.0)
    (replica,) = cell.replicas.values()
    cell.on_report(report(replica.binding.node, engine(replica.id, stage_s=3.0, load_s=4.0)), 5.0)
    assert replica.state == "warming"
    assert not cell.record("u").replicas[0].ready
    assert cell.canaries_due(5.0) == [replica]
    replica.canary_runs = True
    assert cell.canaries_due(5.0) == []
    cell.on_canary(replica, (100, 700), "answered 500", 6.0)
    assert replica.state == "warming"
    assert "answered 500" in str(cell.cause(6.0))
    assert cell.canaries_due(6.5) == []
    assert cell.canaries_due(8.0) == [replica]
    cell.on_canary(replica, (100, 700), None, 9.0)
    replica.on_published(9.5)
    assert replica.state == "ready"
    phases = replica.status().phases
    assert (phases.reserve_s, phases.stage_s, phases.load_s) == (5.0, 3.0, 4.0)
    assert (phases.warm_up_s, phases.register_s) == (4.0, 0.5)


def test_a_replica_that_takes_too_long_says_so() -> None:
    cell = make_cell(replicas=1)
    everybody(cell, 1.0)
    bind(cell, 1.0)
    (replica,) = cell.replicas.values()
    loading = report(replica.binding.node, engine(replica.id, "loading"))
    cell.on_report(loading, 2.0)
    everybody(cell, 60.0)
    cell.on_report(loading, 62.0)
    assert cell.cause(62.0) is None
    cell.on_report(loading, 63.0)
    everybody(cell, 63.0, ("n1",))
    assert "loading since 61 s, it should take 60 s at most" in str(replica.status().cause)


def test_the_canary_of_a_process_that_is_gone_does_not_count() -> None:
    cell = make_cell(replicas=1)
    everybody(cell, 1.0)
    bind(cell, 1.0)
    (replica,) = cell.replicas.values()
    node = replica.binding.node
    cell.on_report(report(node, engine(replica.id, pid=100)), 2.0)
    cell.on_report(report(node, engine(replica.id, pid=200, restarts=1)), 3.0)
    cell.on_canary(replica, (100, 700), None, 3.5)
    assert replica.state == "warming"
    assert cell.canaries_due(3.5) == [replica]


def test_an_engine_that_dies_is_degraded_then_back_after_its_canary() -> None:
    cell = served()
    (first, *_) = cell.replicas.values()
    node = first.binding.node
    dead = engine(first.id, "failed", restarts=1, cause="killed by signal 9")
    cell.on_report(report(node, dead), 3.0)
    assert first.state == "failed"
    assert cell.phase(3.0) == "degraded"
    assert cell.cause(3.0) == f"{first.id} on {node}: killed by signal 9"
    cell.on_report(report(node, engine(first.id, pid=300, restarts=1)), 5.0)
    assert first.state == "warming"
    cell.on_canary(first, (300, 2100), None, 6.0)
    assert first.state == "ready"
    assert first.failures == 0
    assert cell.phase(6.0) == "serving"


def test_a_replica_that_fails_for_good_moves_to_another_node() -> None:
    cell = served()
    (first, *_) = cell.replicas.values()
    node = first.binding.node

    def fails(times: int) -> None:
        cell.on_report(report(node, engine(first.id, "failed", restarts=times, cause="boom")), 3.0)

    fails(MAX_FAILURES - 1)
    assert moves_due(cell, 3.0) == []
    fails(MAX_FAILURES)
    (move,) = moves_due(cell, 3.0)
    assert move.replica is first
    assert move.place.node not in (node, "n1")
    assert "boom" in move.reason
    cell.place(move.place)
    assert moves_due(cell, 3.0) == []
    assert cell.binding is not None
    assert move.place in cell.binding.replicas
    told = cell.on_report(report(move.place.node), 3.1).engines
    assert sorted(place.id for place in told) == sorted(
        r.id for r in cell.replicas.values() if r.binding.node == move.place.node
    )
    assert len({place.port for place in told}) == len(told)
    # The old node is told that it has nothing to run any more.
    assert cell.on_report(report(node), 3.2).engines == ()


def test_a_replica_that_fails_everywhere_stays_where_it_is() -> None:
    cell = served(nodes=3)
    (first, *_) = cell.replicas.values()
    for _ in range(5):
        status = engine(first.id, "failed", restarts=MAX_FAILURES, cause="boom")
        cell.on_report(report(first.binding.node, status), 3.0)
        for move in moves_due(cell, 3.0):
            cell.place(move.place)
    assert first.failed_on | {first.binding.node} == set(WORKERS)
    assert first.state == "failed"


def test_silence_alone_moves_nothing() -> None:
    cell = served()
    later = 2.0 + SILENT_AFTER_S + 1
    everybody_but(cell, "n4", later)
    assert [r.binding.node for r in cell.silent_replicas(later)] == ["n4"]
    assert moves_due(cell, later) == []
    assert {r.state for r in cell.replicas.values()} == {"ready"}
    assert "n4: no report" in str(cell.cause(later))
    assert "Slurm will end this heterogeneous job" in cell.state(later, 1).notes[-1]


def test_a_lost_node_loses_its_replicas_and_gets_none_back() -> None:
    cell = served()
    later = 2.0 + SILENT_AFTER_S + 1
    everybody_but(cell, "n4", later)
    (gone,) = cell.silent_replicas(later)
    gone.unreachable = "n4 is silent and the engine there does not answer"
    assert gone.state == "failed"
    (move,) = moves_due(cell, later)
    cell.place(move.place)
    assert gone.binding.node in ("n2", "n3")
    assert gone.failed_on == frozenset()
    # It comes back with the old engine still running: it is told to stop that.
    stale = cell.on_report(report("n4", engine(gone.id, pid=102)), later + 1)
    assert stale.engines == ()
    assert gone.engine is None


def test_without_room_a_replica_waits_for_its_node() -> None:
    cell = served(most=1)
    later = 2.0 + SILENT_AFTER_S + 1
    everybody_but(cell, "n4", later)
    (gone,) = cell.silent_replicas(later)
    gone.unreachable = "silent"
    assert moves_due(cell, later) == []
    cell.on_report(report("n4", engine(gone.id, pid=102)), later + 1)
    assert gone.state == "ready"


def test_a_late_node_takes_the_replicas_that_had_no_place() -> None:
    cell = make_cell(most=1, min_nodes=2)
    everybody(cell, 29.0, ("n1", "n2", "n3"))
    assert cell.wants_binding(29.5) is None
    everybody(cell, 31.0, ("n1", "n2", "n3"))
    bind(cell, 31.0)
    assert len(cell.replicas) == 2
    assert any("no place" in note for note in cell.state(31.0, 0).notes)
    cell.on_report(report("n4"), 32.0)
    (move,) = moves_due(cell, 32.0)
    assert (move.replica, move.place.node) == (None, "n4")
    cell.place(move.place)
    assert len(cell.on_report(report("n4"), 33.0).engines) == 1


def test_too_few_nodes_is_a_failure_that_names_them() -> None:
    cell = make_cell(min_nodes=3)
    everybody(cell, 20.0, ("n1", "n2"))
    assert cell.hopeless(29.0) is None
    assert cell.phase(31.0) == "failed"
    assert "n3, n4: no report" in str(cell.cause(31.0))
    everybody(cell, 32.0)
    assert cell.phase(32.0) == "nodes"


def test_stop_reaches_every_node_and_withdraws_every_replica() -> None:
    cell = served()
    cell.stop()
    assert set(cell.advance(3.0)) == {"n1", *WORKERS}
    for node in ("n1", *WORKERS):
        answer = cell.on_report(report(node), 3.1)
        assert (answer.stop, answer.engines) == (True, ())
    assert cell.phase(3.1) == "stopping"
    assert not any(replica.ready for replica in cell.record("u").replicas)


def again(cell: Cell, now: float) -> Cell:
    """The cell as a new controller finds it."""
    assert cell.binding is not None
    plan = make_plan()
    fresh = Cell(plan, make_marker(plan), generation=1, now=now, submitted_s=990.0)
    fresh.recall(cell.binding, cell.memory(now), now)
    return fresh


def test_a_restarted_controller_withdraws_nothing() -> None:
    before = served()
    cell = again(before, 100.0)
    assert cell.phase(100.0) == "serving"
    assert all(replica.ready for replica in cell.record("u").replicas)
    answer = cell.on_report(report(node_of(before), seen=57), 101.0)
    assert answer.version > 57
    assert len(answer.engines) == 1
    serve_again = cell.canaries_due(101.0)
    assert serve_again == []
    for index, replica in enumerate(list(cell.replicas.values())):
        status = engine(replica.id, pid=100 + index)
        cell.on_report(report(replica.binding.node, status, seen=57), 102.0)
        assert replica.state == "ready"
    assert len(cell.canaries_due(102.0)) == 3
    assert cell.memory(102.0).replicas == before.memory(102.0).replicas
    for replica in cell.canaries_due(102.0):
        assert replica.process is not None
        cell.on_canary(replica, replica.process, None, 103.0)
    assert cell.canaries_due(104.0) == []


def test_a_restarted_controller_trusts_a_silent_node_for_a_while_only() -> None:
    cell = again(served(), 100.0)
    cell.advance(100.0 + SILENT_AFTER_S - 1)
    assert cell.phase(100.0) == "serving"
    cell.advance(100.0 + SILENT_AFTER_S)
    assert {replica.state for replica in cell.replicas.values()} == {"pending"}


def test_a_node_that_was_lost_with_the_controller_is_noticed() -> None:
    cell = again(served(), 100.0)
    later = 100.0 + SILENT_AFTER_S + 1
    assert cell.silent_replicas(later - 2) == []
    everybody(cell, later, ("n1", "n2", "n3"))
    (gone,) = cell.silent_replicas(later)
    assert gone.binding.node == "n4"
    gone.unreachable = "silent"
    (move,) = moves_due(cell, later)
    assert move.replica is gone


def test_a_process_that_changed_meanwhile_must_answer_first() -> None:
    before = served()
    cell = again(before, 100.0)
    replica = next(iter(cell.replicas.values()))
    cell.on_report(report(replica.binding.node, engine(replica.id, pid=999)), 101.0)
    assert replica.state == "warming"


def test_the_memory_of_another_job_is_void() -> None:
    before = served()
    plan = make_plan()
    marker = make_marker(plan)
    cell = Cell(plan, marker, generation=1, now=0.0)
    assert before.binding is not None
    memory = before.memory(0.0)
    cell.recall(before.binding, dataclasses.replace(memory, started_s=1.0), 0.0)
    assert {replica.state for replica in cell.replicas.values()} == {"pending"}


def everybody_but(cell: Cell, absent: str, now: float) -> None:
    for node in ("n1", *WORKERS):
        if node != absent:
            found = [r for r in cell.replicas.values() if r.binding.node == node]
            engines = [r.engine for r in found if r.engine is not None]
            cell.on_report(report(node, *engines), now)


def test_what_the_whole_cluster_knows_of_a_node_completes_its_facts() -> None:
    plan = make_plan()
    marker = dataclasses.replace(
        make_marker(plan),
        switches={WORKERS[0]: ("spine", "leaf1")},
        features={WORKERS[0]: ("nvme",)},
    )
    cell = Cell(plan, marker, generation=1, now=0.0)
    for name in WORKERS[:2]:
        cell.on_report(report(name), 1.0)
    found = cell.members.nodes[WORKERS[0]].report
    other = cell.members.nodes[WORKERS[1]].report
    assert found is not None
    assert other is not None
    assert (found.facts.switches, found.facts.switch) == (("spine", "leaf1"), "leaf1")
    assert found.facts.features == ("nvme",)
    assert (other.facts.switches, other.facts.features) == ((), None)
    states = {state.node: state.switches for state in cell.members.states(1.0)}
    assert states[WORKERS[0]] == ("spine", "leaf1")
