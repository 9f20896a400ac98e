"""What a router makes of a cell's record and of what the cell says."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from exaslurm.core.cell import (
    CellRecord,
    CellState,
    EngineLoad,
    RayCellState,
    ReplicaRecord,
    ReplicaStatus,
)
from exaslurm.core.codec import dumps
from exaslurm.errors import RegistryError
from exaslurm.registry.follow import SILENT_AFTER_S, Cell
from exaslurm.registry.live import from_record, from_state


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
