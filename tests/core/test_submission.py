from __future__ import annotations

import re
from typing import Any

import pytest

from exaslurm.core.submission import Submission, token_of, why_stray

JOB = "exa-hello-c000.2-0a1b2c3d"


def record(**more: Any) -> Submission:
    values: dict[str, Any] = {
        "deployment": "hello",
        "cell": "c000.2",
        "generation": 1,
        "plan_hash": "",
        "token": "0a1b2c3d",
        "job_name": JOB,
        "state": "submitted",
        "created_s": 1.0,
        "job_id": "7",
        **more,
    }
    return Submission(**values)


@pytest.mark.parametrize(
    ("name", "token"),
    [
        (JOB, "0a1b2c3d"),
        ("exa-hello-c000.2", None),
        ("exa-hello-c000-0a1b2c3d", None),
        ("exa-hello-c000.2-0a1b2c3d4", None),
        ("exa-hello-c000.2-mytest01", None),
        ("exa-other-c000.2-0a1b2c3d", None),
        ("mine", None),
        ("", None),
    ],
)
def test_token_of(name: str, token: str | None) -> None:
    assert token_of(name, "hello", "c000.2") == token


@pytest.mark.parametrize(
    "found",
    [
        None,
        record(),
        record(state="intent", job_id=None),
        record(state="ambiguous", job_id=None),
        record(drain_s=5.0),
    ],
)
def test_the_job_that_is_waited_for(found: Submission | None) -> None:
    assert why_stray(found, JOB, "7") is None


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (record(token="ffffffff", job_id="9"), "again since, as job 9"),
        (record(token="ffffffff", job_id=None, job_name="exa-x"), "again since, as the job named"),
        (record(state="refused", job_id=None), r"given up \(refused\)"),
        (record(state="stopped"), r"given up \(stopped\)"),
        (record(job_id="9"), "is job 9"),
    ],
)
def test_one_that_is_not(found: Submission, why: str) -> None:

    assert re.search(why, why_stray(found, JOB, "7") or "")


def test_a_job_that_was_submitted_by_hand_is_never_one() -> None:
    for name in ("exa-hello-c000.2", "by-hand", ""):
        assert why_stray(record(state="stopped"), name, "7") is None
