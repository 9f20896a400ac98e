from __future__ import annotations

from typing import Any

from exaslurm.core.cell import ReplicaStatus
from exaslurm.rollout.trouble import BROKEN_S, MOST_RESTARTS, Job, Troubles

BRING_UP_S = 100.0


def replica(state: Any, cause: str | None = None, **changes: Any) -> ReplicaStatus:
    given: dict[str, Any] = {
        "id": "r", "model": "chat", "shard": "base", "served_names": ("chat",), "node": "c1",
        "url": "http://c1:1", "state": state, "cause": cause,
    }  # fmt: skip
    return ReplicaStatus(**{**given, **changes})


def job(*replicas: ReplicaStatus, **changes: Any) -> Job:
    given: dict[str, Any] = {"name": "c000.2", "cell": "c000", "generation": 2, "lives": True}
    return Job(**{**given, "replicas": replicas, **changes})


def found(*jobs: Job, after_s: float = BROKEN_S) -> str | None:
    troubles = Troubles()
    troubles.find(jobs, BRING_UP_S, 0.0)
    return troubles.find(jobs, BRING_UP_S, after_s)


BAD = replica("warming", "/v1/completions answered 500: no")


def test_nothing_is_wrong() -> None:
    assert found() is None
    assert found(job(replica("loading"), up_s=50.0)) is None
    assert found(job(replica("ready"), came_up=True, up_s=9999.0)) is None
    assert found(job(replica("warming"))) is None  # its first request is under way


def test_no_replica_of_a_shard_answers() -> None:
    why = "chat:base in c000.2: its first request failed: /v1/completions answered 500: no"
    assert found(job(BAD, BAD)) == why
    assert found(job(BAD), after_s=BROKEN_S - 1) is None
    assert found(job(BAD, replica("ready"))) is None
    assert found(job(BAD, replica("loading"))) is None
    assert found(job(BAD, replica("ready", shard="other"))) == why
    assert found(job(BAD, leaves=True)) is None


def test_it_must_be_so_all_the_time() -> None:
    troubles = Troubles()
    assert troubles.find([job(BAD)], BRING_UP_S, 0.0) is None
    assert troubles.find([job(replica("ready"))], BRING_UP_S, 20.0) is None
    assert troubles.find([job(BAD)], BRING_UP_S, 40.0) is None
    assert troubles.find([job(BAD)], BRING_UP_S, 40.0 + BROKEN_S) is not None


def test_engines_that_always_end() -> None:
    ended = replica("loading", "out of memory", restarts=MOST_RESTARTS)
    assert "has ended 3 times: out of memory" in str(found(job(ended)))
    assert found(job(replica("loading", "x", restarts=1))) is None
    assert found(job(replica("ready", restarts=9))) is None


def test_too_late() -> None:
    assert found(job(replica("loading"), up_s=199.0)) is None
    assert "does not serve" in str(found(job(replica("loading"), up_s=201.0)))
    assert found(job(replica("loading"))) is None  # it waits in the queue: that says nothing


def test_jobs_that_fail() -> None:
    failed = job(lives=False, failure="no driver")
    assert found(failed) is None  # a bad node, perhaps
    assert found(failed, job(name="c000.3", lives=False, end="OUT_OF_MEMORY")) == (
        "2 jobs failed, c000.3 last: OUT_OF_MEMORY"
    )
    for end in ("NODE_FAIL", "PREEMPTED", "CANCELLED", "TIMEOUT", "COMPLETED"):
        assert found(*[job(lives=False, end=end)] * 3) is None
    assert found(*[job(lives=False, end="FAILED", leaves=True)] * 3) is None
