"""Phases and first causes, from facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from exaslurm.core.cell import CellState, NodeState, RayCellState, ReplicaStatus
from exaslurm.core.submission import Submission
from exaslurm.status import cause
from exaslurm.status.model import CellStatus, JobStatus

JOB = JobStatus(id="93", name="exa-hello-c000-abc", cluster=None, state="RUNNING")


def replica(number: int, state: Any = "ready", why: str | None = None) -> ReplicaStatus:
    return ReplicaStatus(
        id=f"c000-r{number:04}",
        model="m",
        shard="base",
        served_names=("m",),
        state=state,
        node=f"c{number}",
        url="http://127.0.0.1:1",
        cause=why,
    )


def state(phase: Any, *replicas: ReplicaStatus, **more: Any) -> CellState:
    fields: dict[str, Any] = {
        "deployment": "hello",
        "cell": "c000",
        "plan_hash": "h",
        "job_id": "93",
        "seq": 1,
        "cause": None,
        "nodes": (),
        "ray": RayCellState(state="off"),
        **more,
    }
    return CellState(phase=phase, replicas=replicas, **fields)


def submission(**more: Any) -> Submission:
    fields: dict[str, Any] = {
        "deployment": "hello",
        "cell": "c000",
        "generation": 1,
        "plan_hash": "h",
        "token": "abc",
        "job_name": "exa-hello-c000-abc",
        "state": "submitted",
        "created_s": 1.0,
        "job_id": "93",
        **more,
    }
    return Submission(**fields)


def cell(name: str, phase: Any, ready: int = 0, why: str | None = None) -> CellStatus:
    return CellStatus(
        name=name,
        phase=phase,
        source="submission",
        cause=why,
        remedy=None,
        job=None,
        nodes_planned=1,
        nodes_joined=0,
        replicas_planned=2,
        replicas_ready=ready,
    )


@pytest.mark.parametrize(
    ("found", "phase", "says"),
    [
        (None, "unsubmitted", "not submitted"),
        (submission(state="refused", message="Invalid account"), "failed", "Invalid account"),
        (submission(state="stopped"), "stopped", None),
        (submission(state="ambiguous", job_id=None), "unknown", "exa-hello-c000-abc"),
        (submission(state="intent", job_id=None), "unknown", "exa-hello-c000-abc"),
    ],
)
def test_what_the_submission_decides(found: Any, phase: str, says: str | None) -> None:
    finding = cause.judge_submission(found, "hello")
    assert finding is not None
    assert finding.phase == phase
    assert (says or "") in (finding.cause or "")


def test_a_submitted_job_is_asked_about() -> None:
    assert cause.judge_submission(submission(), "hello") is None


def test_why_a_job_waits_is_said_in_words() -> None:
    job = replace(JOB, state="PENDING", reason="Priority", explanation="waits behind others")
    finding = cause.judge_job(job, run_wanted=True)
    assert finding == cause.Finding("queued", "job 93 waits behind others")


@pytest.mark.parametrize(
    ("job", "failure", "tail", "says"),
    [
        (replace(JOB, state="TIMEOUT"), None, "noise", "job 93 reached its time limit"),
        (replace(JOB, state="NODE_FAIL"), None, None, "job 93 lost a node"),
        (
            replace(JOB, state="FAILED", exit_code=3),
            None,
            "no module named exaslurm",
            "job 93 failed (exit code 3); the last words of its logs: no module named exaslurm",
        ),
        (
            replace(JOB, state="FAILED"),
            "nodes c3 did not report",
            "noise",
            "job 93 failed: nodes c3 did not report",
        ),
        (replace(JOB, state="GONE"), None, None, "job 93 ended some time ago"),
        (
            replace(JOB, id="local", state=cause.LOCAL_ENDED),
            None,
            None,
            "the cell's init process is not running any more",
        ),
    ],
)
def test_why_a_job_ended(job: JobStatus, failure: Any, tail: Any, says: str) -> None:
    finding = cause.judge_job(job, run_wanted=True, failure=failure, log_tail=tail)
    assert finding is not None
    assert (finding.phase, finding.cause) == ("ended", says)


@pytest.mark.parametrize(("ident", "verb"), [("93", "supervise"), ("local", "submit")])
def test_what_brings_an_ended_job_back(ident: str, verb: str) -> None:
    finding = cause.judge_job(replace(JOB, id=ident, state="TIMEOUT"), run_wanted=True)
    assert finding is not None
    assert f"exaslurm {verb}" in str(finding.remedy)


def test_a_job_that_was_stopped_on_purpose_is_no_problem() -> None:
    finding = cause.judge_job(replace(JOB, state="CANCELLED"), run_wanted=False)
    assert finding == cause.Finding("stopped")


@pytest.mark.parametrize("word", ["RUNNING", "COMPLETING", "UNKNOWN"])
def test_a_job_that_may_run_is_asked_further(word: str) -> None:
    assert cause.judge_job(replace(JOB, state=word), run_wanted=True) is None


def test_unknown_is_not_ended() -> None:
    assert "UNKNOWN" not in cause.ENDED


@pytest.mark.parametrize(
    ("given", "planned", "phase", "says"),
    [
        (state("serving", replica(1), replica(2)), 2, "ready", None),
        (state("serving", replica(1), replica(2, "loading")), 2, "degraded", "1 of 2"),
        (state("engines", replica(1, "loading")), 1, "engines", None),
        (state("engines", replica(1)), 1, "ready", None),
        (
            state("degraded", replica(1), replica(2, "failed", "CUDA out of memory")),
            2,
            "degraded",
            "replica c000-r0002 on c2: CUDA out of memory",
        ),
        (state("failed", cause="no node reported"), 2, "failed", "no node reported"),
        (state("stopping"), 2, "stopping", None),
        (
            state("nodes", nodes=(NodeState(node="c3", het_group=1, state="silent"),)),
            2,
            "nodes",
            "node c3 is silent",
        ),
    ],
)
def test_what_a_controller_says(given: CellState, planned: int, phase: str, says: Any) -> None:
    finding = cause.judge_state(given, planned=planned)
    assert finding.phase == phase
    assert (says or "") in (finding.cause or "")
    if says is None:
        assert finding.cause is None


def test_a_silent_controller_leaves_what_was_last_written() -> None:
    assert cause.judge_records(2, 2, known=True).phase == "ready"
    assert cause.judge_records(1, 2, known=True).phase == "degraded"
    assert cause.judge_records(0, 2, known=False).phase == "nodes"


@pytest.mark.parametrize(
    ("cells", "phase", "says"),
    [
        ([], "unsubmitted", "nothing was submitted"),
        ([cell("a", "ready", 2), cell("b", "ready", 2)], "ready", None),
        ([cell("a", "ready", 2), cell("b", "queued", 0, "waits")], "queued", "cell b: waits"),
        ([cell("a", "ready", 2), cell("b", "ended", 0, "x")], "degraded", "cell b: x"),
        ([cell("a", "ended", 0, "x")], "ended", "x"),
        ([cell("a", "stopped"), cell("b", "stopped")], "stopped", None),
    ],
)
def test_the_worst_cell_speaks_for_all(cells: Any, phase: str, says: Any) -> None:
    finding = cause.combine(cells)
    assert (finding.phase, finding.cause) == (phase, says)
