"""A replica over two nodes: one replica, which starts, fails, restarts and moves whole."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from exaslurm.bind.binder import bind_cell
from exaslurm.controller.cell import Cell
from exaslurm.controller.drain import drain_nodes, drain_replicas
from exaslurm.controller.gangs import processes_of
from exaslurm.controller.memory import ControllerMemory
from exaslurm.controller.nodes import SILENT_AFTER_S
from exaslurm.controller.ray_watch import group_of
from exaslurm.controller.relay import relays_due
from exaslurm.controller.replace import moves_due
from exaslurm.controller.replicas import MAX_FAILURES, Replica
from exaslurm.core.cell import EngineStatus
from exaslurm.core.codec import dumps, loads
from tests.controller.conftest import WORKERS, engine, everybody, make_marker, make_plan, report


def gang_cell(*, workers: int = 3) -> Cell:
    plan = make_plan(replicas=1, nodes=workers, min_nodes=1)
    model = dataclasses.replace(plan.models[0], tensor=2, nodes=2)
    plan = dataclasses.replace(plan, models=(model,)).sealed()
    return Cell(plan, make_marker(plan, WORKERS[:workers]), generation=1, now=0.0, submitted_s=0.0)


class Agents:
    """The agents of all nodes: they do at once what they are told. ``parts`` are the engines by
    node; a part that has ended stays, as failed, until it is not wanted any more."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.parts: dict[str, EngineStatus] = {}
        self.seen: dict[str, int] = {}
        self.deaf: set[str] = set()
        self.pid = 100

    def report(self, node: str, now: float) -> None:
        parts = [self.parts[node]] if node in self.parts else []
        self.cell.on_report(report(node, *parts, seen=self.seen.get(node, 0)), now)

    def obey(self, now: float) -> None:
        """One round: every agent reports, does what it is told, and says so."""
        for node in ("n1", *WORKERS):
            if node in self.deaf or node not in self.cell.members.nodes:
                continue
            self.report(node, now)
            desired = self.cell.book.get(node)
            self.seen[node] = desired.version
            wanted = desired.engines[0] if desired.engines else None
            part = self.parts.get(node)
            if part is not None and (wanted is None or wanted.attempt != part.attempt):
                del self.parts[node]
            if wanted is not None and node not in self.parts:
                self.pid += 1
                self.parts[node] = engine(wanted.id, pid=self.pid, attempt=wanted.attempt)
            self.report(node, now)

    def die(self, node: str, cause: str, now: float) -> None:
        part = self.parts[node]
        self.parts[node] = EngineStatus(
            replica=part.replica, phase="failed", cause=cause, attempt=part.attempt
        )
        self.report(node, now)


def loop(cell: Cell, now: float) -> None:
    """What the server does at each turn."""
    for move in moves_due(cell, now):
        cell.place(move.place, now)
    cell.restart_gangs(now)
    cell.advance(now)


def answer(cell: Cell, now: float) -> None:
    for replica in cell.canaries_due(now):
        assert replica.process is not None
        cell.on_canary(replica, replica.process, None, now)


@pytest.fixture
def cell() -> Cell:
    return gang_cell()


def served(cell: Cell) -> tuple[Agents, Replica]:
    agents = Agents(cell)
    everybody(cell, 1.0, tuple(cell.members.nodes))
    facts = cell.wants_binding(1.0)
    assert facts is not None
    cell.bind(bind_cell(cell.plan, cell.cell, facts))
    loop(cell, 1.0)
    agents.obey(2.0)
    answer(cell, 2.0)
    (replica,) = cell.replicas.values()
    assert replica.state == "ready"
    return agents, replica


def told(cell: Cell, node: str) -> list[tuple[str, int, int]]:
    return [(part.node, part.rank, part.attempt) for part in cell.book.get(node).engines]


def test_each_node_is_told_its_part(cell: Cell) -> None:
    _, replica = served(cell)
    assert replica.binding.nodes == ("n2", "n3")
    assert told(cell, "n2") == [("n2", 0, 0)]
    assert told(cell, "n3") == [("n3", 1, 0)]
    assert told(cell, "n4") == []
    (status,) = cell.state(2.0, 1).replicas
    assert (status.node, status.nodes) == ("n2", ("n2", "n3"))
    (record,) = cell.record("u").replicas
    assert record.ready
    assert record.url == f"http://{replica.binding.address}:{replica.binding.port}"


def test_each_part_is_shown_with_its_place(cell: Cell) -> None:
    agents, replica = served(cell)
    part = agents.parts["n3"]
    agents.parts["n3"] = dataclasses.replace(
        part, cpus_actual=(5,), off_plan="it runs on CPUs 5 too"
    )
    agents.report("n3", 3.0)
    state = cell.state(3.0, 1)
    (status,) = state.replicas
    assert [(part.node, part.cores_actual) for part in status.parts] == [("n2", None), ("n3", (5,))]
    assert status.parts[1].cores == replica.binding.ranks[1].cores
    assert status.parts[1].cores_granted == tuple(range(8))
    assert status.off_plan == "rank 1 on n3: it runs on CPUs 5 too"
    assert any("c000-r0000 on n3 is not where it was planned" in note for note in state.notes)
    assert loads(type(state), dumps(state), where="test") == state


def test_it_is_ready_only_when_rank_0_answers(cell: Cell) -> None:
    everybody(cell, 1.0)
    facts = cell.wants_binding(1.0)
    assert facts is not None
    cell.bind(bind_cell(cell.plan, cell.cell, facts))
    cell.advance(1.0)
    (replica,) = cell.replicas.values()
    cell.on_report(report("n3", engine(replica.id)), 2.0)
    assert (replica.state, cell.canaries_due(2.0)) == ("pending", [])
    cell.on_report(report("n2", engine(replica.id, "loading", pid=7)), 3.0)
    assert replica.state == "loading"
    cell.on_report(report("n2", engine(replica.id, pid=7)), 4.0)
    assert (replica.state, cell.canaries_due(4.0)) == ("warming", [replica])


@pytest.mark.parametrize(("node", "other"), [("n2", "n3"), ("n3", "n2")])
def test_any_part_that_ends_fails_it_whole(cell: Cell, node: str, other: str) -> None:
    agents, replica = served(cell)
    agents.die(node, "killed", 10.0)
    assert replica.state == "failed"
    rank = 0 if node == "n2" else 1
    assert str(cell.cause(10.0)).endswith(f"rank {rank} on {node}: killed")
    assert not cell.record("u").replicas[0].ready
    for name in ("n2", "n3"):
        assert told(cell, name) == []
        assert cell.book.get(name).kill == (replica.id,)
    assert cell.book.get("n4").kill == ()
    # The other part is still there: nothing starts.
    loop(cell, 11.0)
    assert told(cell, node) == []
    agents.seen[other] = cell.book.get(other).version
    agents.report(other, 12.0)
    loop(cell, 12.0)
    assert told(cell, node) == []
    agents.obey(13.0)
    loop(cell, 13.0)
    assert told(cell, "n2") == [("n2", 0, 1)]
    assert told(cell, "n3") == [("n3", 1, 1)]
    assert cell.book.get("n2").kill == ()
    agents.obey(14.0)
    assert replica.state == "warming"
    answer(cell, 14.0)
    assert replica.state == "ready"
    assert replica.status().restarts == 1
    assert replica.failures == 0


def test_while_it_loads_again_it_says_what_ended_it(cell: Cell) -> None:
    agents, replica = served(cell)
    agents.die("n3", "killed", 10.0)
    agents.obey(11.0)
    loop(cell, 11.0)
    loading = engine(replica.id, "loading", pid=7, attempt=1)
    cell.on_report(report("n2", loading, seen=cell.book.get("n2").version), 12.0)
    assert (replica.state, replica.cause) == ("loading", "rank 1 on n3: killed")
    agents.obey(13.0)
    answer(cell, 13.0)
    assert (replica.state, replica.cause) == ("ready", None)


def test_words_about_an_earlier_start_are_not_heard(cell: Cell) -> None:
    agents, replica = served(cell)
    old = agents.parts["n2"]
    agents.die("n3", "killed", 10.0)
    agents.obey(11.0)
    loop(cell, 11.0)
    agents.obey(12.0)
    answer(cell, 12.0)
    assert replica.state == "ready"
    cell.on_report(report("n2", dataclasses.replace(old, phase="failed"), seen=99), 13.0)
    assert replica.state == "ready"


def test_it_waits_longer_each_time(cell: Cell) -> None:
    agents, replica = served(cell)
    now, pauses = 10.0, []
    for _ in range(3):
        agents.die("n3", "no", now)
        agents.obey(now)
        began = now
        while replica.gang is not None and replica.gang.failure is not None:
            loop(cell, now)
            now += 0.5
        pauses.append(now - began)
        agents.obey(now)
    assert pauses[0] < pauses[1] < pauses[2]


def fail_until_moved(cell: Cell, agents: Agents, node: str, now: float) -> float:
    for _ in range(MAX_FAILURES):
        agents.die(node, "no", now)
        agents.obey(now)
        now += 61.0
        everybody(cell, now, ("n1",))
        agents.obey(now)
        loop(cell, now)
        agents.obey(now)
    return now


def test_it_moves_whole_when_it_fails_too_often(cell: Cell) -> None:
    agents, replica = served(cell)
    now = fail_until_moved(cell, agents, "n3", 10.0)
    assert replica.binding.nodes == ("n2", "n4")
    assert told(cell, "n3") == []
    assert told(cell, "n4") == [("n4", 1, MAX_FAILURES)]
    answer(cell, now)
    assert replica.state == "ready"


def test_with_no_other_node_it_stays(cell: Cell) -> None:
    small = gang_cell(workers=2)
    agents, replica = served(small)
    now = fail_until_moved(small, agents, "n3", 10.0)
    assert replica.binding.nodes == ("n2", "n3")
    answer(small, now)
    assert replica.state == "ready"


def test_a_lost_node_moves_it(cell: Cell) -> None:
    agents, replica = served(cell)
    agents.deaf = {"n3"}
    silent_s = 3.0 + SILENT_AFTER_S
    agents.obey(silent_s)
    assert cell.silent_replicas(silent_s) == [replica]
    assert cell.silent_node(replica, silent_s) == "n3"
    assert replica.state == "ready"  # until a real request gets no answer
    cell.gang_lost(replica, "n3 is silent and gave no answer", "n3", silent_s)
    assert replica.state == "failed"
    loop(cell, silent_s)
    assert replica.binding.nodes == ("n2", "n3")  # rank 0 has not ended yet
    agents.obey(silent_s + 1)
    loop(cell, silent_s + 1)
    assert replica.binding.nodes == ("n2", "n4")
    agents.obey(silent_s + 2)
    answer(cell, silent_s + 2)
    assert replica.state == "ready"
    agents.deaf = set()  # it comes back, with its old part
    agents.obey(silent_s + 3)
    assert "n3" not in agents.parts
    assert replica.state == "ready"


def test_a_lost_node_that_nothing_replaces_is_waited_for() -> None:
    small = gang_cell(workers=2)
    agents, replica = served(small)
    agents.deaf = {"n3"}
    agents.obey(30.0)
    small.gang_lost(replica, "n3 is silent", "n3", 30.0)
    for now in (31.0, 32.0, 90.0):
        agents.obey(now)
        loop(small, now)
    assert (replica.state, told(small, "n2")) == ("failed", [])
    agents.deaf = set()
    agents.obey(91.0)
    loop(small, 91.0)
    agents.obey(92.0)
    answer(small, 92.0)
    assert replica.state == "ready"


def test_a_new_controller_takes_it_over(cell: Cell) -> None:
    agents, replica = served(cell)
    agents.die("n3", "killed", 10.0)
    agents.obey(11.0)
    loop(cell, 11.0)
    agents.obey(12.0)
    answer(cell, 12.0)
    assert cell.binding is not None
    again = gang_cell()
    memory = loads(ControllerMemory, dumps(cell.memory(0.0)), where="test")
    again.recall(loads(type(cell.binding), dumps(cell.binding), where="test"), memory, 20.0)
    again.advance(20.0)
    (replica,) = again.replicas.values()
    assert replica.state == "ready"
    agents.cell = again
    # Rank 1's word comes first: that of rank 0 is not missed for it.
    agents.report("n3", 20.5)
    assert replica.state == "ready"
    agents.obey(21.0)
    assert replica.state == "ready"
    assert told(again, "n3") == [("n3", 1, 1)]


def test_a_failure_is_remembered_at_once(cell: Cell) -> None:
    """A controller that dies now must not let new parts meet those of the failed start."""
    agents, _ = served(cell)
    agents.die("n3", "killed", 10.0)
    assert cell.binding is not None
    assert cell.binding.replicas[0].attempt == 1


def test_stop_ends_all_parts(cell: Cell) -> None:
    served(cell)
    cell.stop()
    cell.advance(10.0)
    for node in ("n2", "n3"):
        desired = cell.book.get(node)
        assert (desired.engines, desired.stop) == ((), True)


def test_ray_sees_all_its_nodes(cell: Cell) -> None:
    _, replica = served(cell)
    group: dict[str, Any] = group_of(replica.binding)
    assert len(group["bundles"]) == 2
    assert [list(selector.values()) for selector in group["selectors"]] == [["n2"], ["n3"]]


def test_with_the_ray_executor_only_rank_0_is_started(cell: Cell) -> None:
    _, replica = served(cell)
    model = dataclasses.replace(replica.model, executor="ray")
    assert [part.node for part in processes_of(replica.binding, model)] == ["n2"]


def rounds(cell: Cell, agents: Agents, began: float, seconds: int) -> float:
    """So many seconds of agents and server."""
    for second in range(seconds):
        now = began + second
        while relays := relays_due(cell, now):
            for relay in relays:
                assert relay.place is None  # its nodes may overlap: it leaves first
                relay.replica.leave(relay.reason, now)
        loop(cell, now)
        agents.obey(now)
        answer(cell, now)
    return began + seconds


def test_a_drained_gang_ends_whole_before_any_part_starts_again(cell: Cell) -> None:
    agents, replica = served(cell)
    drain_replicas(cell, [replica.id], "slow", 10.0)
    assert (replica.state, sorted(agents.parts)) == ("draining", ["n2", "n3"])
    agents.deaf = {"n3"}  # it has not heard yet that it shall end
    for node in ("n1", "n2", "n4"):
        agents.report(node, 12.0)
    agents.report("n3", 14.5)
    rounds(cell, agents, 15.0, 3)
    assert told(cell, "n2") == told(cell, "n3") == []
    agents.deaf = set()
    rounds(cell, agents, 20.0, 4)
    assert replica.state == "ready"
    # Only one other node is there: it comes back to its own, as another start.
    assert replica.binding.nodes == ("n2", "n3")
    assert {part.attempt for part in agents.parts.values()} == {1}


def test_a_gang_leaves_a_drained_node(cell: Cell) -> None:
    agents, replica = served(cell)
    drain_nodes(cell, ["n2"], "a fan", wall_s=1000.0, excluded_s=0.0)
    rounds(cell, agents, 10.0, 12)
    assert replica.state == "ready"
    assert replica.binding.nodes == ("n3", "n4")
    assert sorted(agents.parts) == ["n3", "n4"]
