"""What a router makes of a cell's record and of what the cell says."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from exaslurm.controller.view import router_view
from exaslurm.core.cell import (
    CellRecord,
    CellState,
    EngineLoad,
    RayCellState,
    ReplicaRecord,
    ReplicaStatus,
)
from exaslurm.core.codec import dumps, loads
from exaslurm.errors import RegistryError
from exaslurm.registry.follow import LOADS_AGAIN_S, SILENT_AFTER_S, Cell
from exaslurm.registry.live import Replicas, from_record
from exaslurm.registry.live import from_state as read_state


def record(*ready: bool, **changes: Any) -> CellRecord:
    base = CellRecord(
        deployment="hello",
        cell="c000",
        generation=1,
        plan_hash="abc",
        job_id="17",
        seq=1,
        lease_s=30.0,
        state_url="http://127.0.0.1:20000",
        replicas=tuple(
            ReplicaRecord(
                id=f"c000-r{number:04}",
                model="chat",
                shard="base",
                served_names=("chat", "chat:base"),
                url=f"http://127.0.0.1:{20020 + number}",
                node="c1",
                ready=is_ready,
                weight=2.0,
                priority=1,
            )
            for number, is_ready in enumerate(ready)
        ),
    )
    return dataclasses.replace(base, **changes)


def state(*states: str, phase: str = "serving", **changes: Any) -> bytes:
    fields: dict[str, Any] = {"pid": 100, **changes}
    cell = CellState(
        deployment="hello",
        cell="c000",
        plan_hash="abc",
        job_id="17",
        seq=5,
        phase=phase,  # type: ignore[arg-type]
        cause=None,
        nodes=(),
        ray=RayCellState(state="off"),
        replicas=tuple(
            ReplicaStatus(
                id=f"c000-r{number:04}",
                model="chat",
                shard="base",
                served_names=("chat", "chat:base"),
                state=name,  # type: ignore[arg-type]
                node="c1",
                url=f"http://127.0.0.1:{20020 + number}",
                **fields,
            )
            for number, name in enumerate(states)
        ),
    )
    return dumps(cell).encode()


def from_state(raw: bytes, record: CellRecord, known: Replicas) -> Replicas:
    replicas = read_state(raw, record, known).replicas
    assert replicas is not None
    return replicas


def taking(replicas: dict[str, Any]) -> list[bool]:
    return [item.takes_requests for item in replicas.values()]


def test_the_state_says_who_takes_requests() -> None:
    states = ("ready", "draining", "loading", "failed", "ready")
    fresh = from_state(state(*states), record(True, True), {})
    assert taking(fresh) == [True, False, False, False, True]
    assert [item.state for item in fresh.values()] == list(states)
    # Weights and priorities are the plan's: they come with the record.
    assert (fresh["c000-r0001"].weight, fresh["c000-r0004"].weight) == (2.0, 1.0)
    asleep = EngineLoad(running=0, waiting=0, kv_use=0.0, sleeping=True)
    assert taking(from_state(state("ready", load=asleep), record(True), {})) == [False]


@pytest.mark.parametrize(("phase", "states"), [("nodes", ()), ("ray", ()), ("nodes", ("pending",))])
def test_a_controller_that_begins_again_takes_nothing_away(
    phase: str, states: tuple[str, ...]
) -> None:
    known = from_record(record(True))
    assert taking(from_state(state(*states, phase=phase, pid=None), record(True), known)) == [True]


def test_a_restarted_engine_is_not_ready_until_its_cell_says_so() -> None:
    known = from_state(state("ready"), record(True), {})
    assert taking(from_state(state("warming"), record(True), known)) == [True]
    assert taking(from_state(state("warming", pid=101), record(True), known)) == [False]
    assert taking(from_state(state("loading"), record(True), known)) == [False]
    assert from_state(state(), record(True), known) == {}


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"deployment": "hello"}', state()[:-9]])
def test_other_answers_are_refused(raw: bytes) -> None:
    with pytest.raises(RegistryError, match="no cell state"):
        from_state(raw, record(True), {})


@pytest.mark.parametrize(
    "odd",
    [
        {"id": 7},
        {"model": None},
        {"url": None},
        {"node": None},
        {"state": 1},
        {"version": 7},
        {"served_names": ["chat", None]},
        {"served_names": 5},
        {"served_names": ["chat", "two\nlines"]},
        {"model": "\x1b[2J"},
        {"id": "a\r\nb"},
        {"pid": 5.0},
        {"pid": True},
        {"max_model_len": 4096.0},
        {"max_model_len": "4096"},
    ],
)
def test_what_no_router_could_use_is_refused(odd: dict[str, Any]) -> None:
    data = json.loads(state("ready", "ready"))
    data["replicas"][1] |= odd
    with pytest.raises(RegistryError, match="no cell state at"):
        from_state(json.dumps(data).encode(), record(True, True), {})


def test_the_answer_of_another_cell_is_refused() -> None:
    with pytest.raises(RegistryError, match="hello/c000, not of hello/c001"):
        from_state(state(), record(True, cell="c001"), {})


def test_newer_fields_do_not_matter() -> None:
    raw = state("ready").replace(b'"phase"', b'"brand_new":{"x":1},"phase"')
    assert taking(from_state(raw, record(True), {})) == [True]


class TestCell:
    def test_the_lease_counts_from_the_last_new_number(self) -> None:
        cell = Cell(record(True), 100.0)
        cell.take_record(record(True), 120.0)
        assert cell.lease_age_s(125.0) == 25.0
        cell.take_record(record(True, seq=2), 130.0)
        assert cell.lease_age_s(130.0) == 0.0
        assert cell.confirmed
        assert not cell.is_orphaned(160.0)
        assert cell.is_orphaned(160.1)

    def test_a_record_of_old_needs_a_sign_of_life(self) -> None:
        cell = Cell(record(True), 0.0)
        assert cell.is_orphaned(0.0)
        assert [item.takes_requests for item in cell.visible()] == [False]
        cell.answering["c000-r0000"] = True
        assert [item.takes_requests for item in cell.visible()] == [True]
        cell.answering.clear()
        cell.take_record(record(True, seq=2), 1.0)
        assert not cell.is_orphaned(1.0)
        assert [item.takes_requests for item in cell.visible()] == [True]

    def test_a_late_lease_alone_takes_nothing_away(self) -> None:
        cell = Cell(record(True), 0.0)
        cell.take_state(state("ready"), 1.0)
        assert cell.is_orphaned(1000.0)
        assert [item.takes_requests for item in cell.visible()] == [True]
        cell.answering["c000-r0000"] = True
        assert [item.takes_requests for item in cell.visible()] == [True]
        cell.answering["c000-r0000"] = False
        assert [item.takes_requests for item in cell.visible()] == [False]
        assert cell.take_state(state("ready"), 1001.0)
        assert [item.takes_requests for item in cell.visible()] == [True]

    def test_the_record_counts_while_the_controller_is_silent(self) -> None:
        cell = Cell(record(False), 0.0)
        cell.take_state(state("ready"), 1.0)
        cell.take_record(record(False, seq=2), 2.0)
        assert taking(cell.replicas) == [True]
        later_s = 1.0 + SILENT_AFTER_S
        cell.take_record(record(True, True, seq=3), later_s)
        assert taking(cell.replicas) == [True, True]

    def test_another_job_replaces_what_was_known(self) -> None:
        cell = Cell(record(True, True), 0.0)
        cell.take_state(state("ready", "ready"), 1.0)
        cell.take_record(record(False, job_id="18"), 2.0)
        assert taking(cell.replicas) == [False]
        assert not cell.is_heard(2.0)


def view(*states: str, seen: str = "", running: int = 1) -> bytes:
    """What a controller answers to a router that has seen ``seen``."""
    load = EngineLoad(running=running, waiting=0, kv_use=0.5)
    cell = loads(CellState, state(*states, load=load), where="test")
    return json.dumps(router_view(cell, seen)).encode()


def whole(*states: str, seen: str = "", running: int = 1) -> bytes:
    """What one of before there were views answers."""
    return state(*states, load=EngineLoad(running=running, waiting=0, kv_use=0.5))


class TestLoads:
    @pytest.mark.parametrize("answer", [view, whole])
    def test_changed_figures_are_told_at_once_and_all_of_them_again(self, answer: Any) -> None:
        cell = Cell(record(True, True), 0.0)
        cell.take_state(answer("ready", "ready"), 1.0)
        both = {f"c000-r000{i}": EngineLoad(running=1, waiting=0, kv_use=0.5) for i in range(2)}
        assert cell.fresh_loads(1.0) == both
        before = cell.replicas
        assert not cell.take_state(answer("ready", "ready", seen=cell.told.tag), 2.0)
        assert cell.replicas == before
        assert cell.fresh_loads(2.0) == {}
        cell.take_state(answer("ready", "ready", seen=cell.told.tag, running=3), 3.0)
        assert {load.running for load in cell.fresh_loads(3.0).values()} == {3}
        assert len(cell.fresh_loads(1.0 + LOADS_AGAIN_S)) == 2

    def test_figures_go_with_their_replicas(self) -> None:
        cell = Cell(record(True), 0.0)
        cell.take_state(view("ready"), 1.0)
        assert set(cell.fresh_loads(1.0)) == {"c000-r0000"}
        cell.take_state(view("ready", "ready", seen=cell.told.tag), 2.0)
        assert set(cell.fresh_loads(2.0)) == {"c000-r0000", "c000-r0001"}

    def test_a_new_word_of_the_record_is_asked_for_whole(self) -> None:
        """Weights are the record's."""
        cell = Cell(record(True), 0.0)
        cell.take_state(view("ready"), 1.0)
        assert cell.told.tag
        heavier = dataclasses.replace(record(True).replicas[0], weight=3.0)
        cell.take_record(record(seq=2, replicas=(heavier,)), 1.5)
        assert not cell.told.tag
        cell.take_state(view("ready", seen=cell.told.tag), 2.0)
        assert [item.weight for item in cell.replicas.values()] == [3.0]

    def test_figures_that_do_not_fit_are_refused(self) -> None:
        answer = json.loads(view("ready"))
        answer["loads"] = []
        with pytest.raises(RegistryError, match="0 figures for 1 replicas"):
            read_state(json.dumps(answer).encode(), record(True), {})

    def test_an_answer_without_replicas_to_one_who_knows_none_is_refused(self) -> None:
        tag = json.loads(view("ready"))["tag"]
        with pytest.raises(RegistryError, match="replicas"):
            read_state(view("ready", seen=tag), record(True), {})


def test_the_switch_comes_with_the_record() -> None:
    (item,) = record(True).replicas
    made = record(replicas=(dataclasses.replace(item, labels={"switch": "s1"}),))
    assert from_record(made)[item.id].switch == "s1"
    assert from_state(state("ready"), made, {})[item.id].switch == "s1"


def test_the_version_comes_with_the_state_or_with_the_record() -> None:
    written = record(True)
    written = dataclasses.replace(
        written, replicas=(dataclasses.replace(written.replicas[0], version="1a2b3c4d"),)
    )
    assert from_record(written)["c000-r0000"].version == "1a2b3c4d"
    assert from_state(state("ready"), written, {})["c000-r0000"].version == "1a2b3c4d"
    fresh = from_state(state("ready", version="5e6f7a8b"), record(True), {})
    assert fresh["c000-r0000"].version == "5e6f7a8b"
