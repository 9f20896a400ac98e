"""A replica that runs elsewhere than planned serves, and is complained of."""

from __future__ import annotations

from typing import Any

import pytest

from exaslurm.core.cell import CellState, RayCellState, ReplicaStatus
from exaslurm.status.cause import judge_state


def replica(number: int, off_plan: str | None = None) -> ReplicaStatus:
    return ReplicaStatus(
        id=f"c000-r{number:04}", model="m", shard="base", served_names=("m",), state="ready",
        node=f"n{number}", url="http://127.0.0.1:1", off_plan=off_plan,
    )  # fmt: skip


@pytest.mark.parametrize("phase", ["serving", "engines"])
def test_it_is_ready_and_the_cause_says_what_is_wrong(phase: Any) -> None:
    found = judge_state(
        CellState(
            deployment="d", cell="c000", plan_hash="h", job_id="1", seq=1, phase=phase, cause=None,
            nodes=(), ray=RayCellState(state="off"),
            replicas=(replica(0), replica(1, "planned for CPUs 0, but process 7 (x) may run on 1")),
        ),
        planned=2,
    )  # fmt: skip
    assert found.phase == "ready"
    assert found.cause == (
        "replica c000-r0001 on n1 is not where it was planned to be: "
        "planned for CPUs 0, but process 7 (x) may run on 1"
    )
    assert found.remedy is not None
