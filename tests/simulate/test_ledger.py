from __future__ import annotations

from typing import Literal

from exaslurm.core.cell import CellState, RayCellState, ReplicaStatus
from exaslurm.simulate.ledger import HAND_OVER_S, Ledger, doubled
from exaslurm.simulate.soak import to_hand_over


def test_a_hand_over_is_measured() -> None:
    ledger = Ledger()
    for _ in range(3):
        ledger.look(["c000", "c000.2", "c001"], 10.0, impaired=False)
    ledger.look(["c000.2", "c001"], 10.0, impaired=False)
    assert (ledger.longest_s, ledger.too_long) == (30.0, [])


def test_one_that_takes_too_long_is_named_once() -> None:
    ledger = Ledger()
    for _ in range(int(HAND_OVER_S / 10) + 3):
        ledger.look(["c000", "c000.2"], 10.0, impaired=False)
    assert ledger.too_long == ["c000"]


def test_time_without_a_supervisor_does_not_count() -> None:
    ledger = Ledger()
    for _ in range(20):
        ledger.look(["c000", "c000.2"], 10.0, impaired=True)
    assert (ledger.longest_s, ledger.too_long) == (0.0, [])


def test_a_turn_with_two_jobs_is_named() -> None:
    assert doubled({"101": "c000", "102": "c001", "103": "c000.2"}) == []
    assert doubled({"101": "c000", "102": "c001", "103": "c000"}) == ["c000"]


def state(turn: str, phase: Literal["serving", "degraded"], ready: bool = True) -> CellState:
    replica = ReplicaStatus(
        id=f"{turn}-r0000",
        model="toy",
        shard="base",
        served_names=("toy",),
        state="ready" if ready else "failed",
        node="s001",
        url="http://s001:1",
    )
    return CellState(
        deployment="soak",
        cell=turn,
        plan_hash="",
        job_id="1",
        seq=1,
        phase=phase,
        cause=None,
        nodes=(),
        ray=RayCellState(state="off"),
        replicas=(replica,),
    )


def test_a_newcomer_takes_over_when_it_serves_in_full() -> None:
    def found(*states: CellState) -> list[str]:
        return to_hand_over({state.cell: state for state in states})

    old = state("c000.9", "serving")
    assert found(old) == ["c000.9"]
    assert found(old, state("c000.10", "degraded")) == []
    assert found(old, state("c000.10", "serving")) == ["c000.9", "c000.10"]
    assert found(state("c000.9", "degraded"), state("c000.10", "serving")) == ["c000.9", "c000.10"]
    assert found(state("c000.9", "degraded", False), state("c000.10", "serving")) == ["c000.10"]
