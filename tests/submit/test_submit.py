from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from exaslurm.core.codec import dumps, loads
from exaslurm.core.plan import Plan
from exaslurm.errors import (
    DeploymentError,
    ExitCode,
    QueryFailed,
    StateError,
    SubmitAmbiguous,
    SubmitRejected,
    WaitTimeout,
)
from exaslurm.slurm.client import Slurm
from exaslurm.slurm.types import JobId
from exaslurm.submit import survey
from exaslurm.submit.lock import deployment_lock
from exaslurm.submit.submit import submit
from tests.submit import conftest
from tests.submit.conftest import Desk, rejected


class Crash(BaseException):
    """The process was ended in the middle."""


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """No submission is so fresh that its job may still turn up."""
    monkeypatch.setattr(survey, "SETTLED_S", 0.0)


# --- the ordinary way -------------------------------------------------------------------------


def test_first_submit(desk: Desk) -> None:
    result = desk.submit()
    assert not result.attached
    assert result.generation == 1
    assert [item.job_id for item in result.submissions] == ["100", "101"]
    generation = desk.run_dir.generation(1)
    plan = loads(Plan, generation.plan.read_text(), where="plan.json")
    assert plan.is_sealed()
    assert plan == result.plan
    assert generation.spec.read_text() == desk.spec().read_text()
    assert desk.queue.scripts == [generation.script(c).read_text() for c in ("c000", "c001")]
    names = [f"exa-hello-{item.cell}-{item.token}" for item in result.submissions]
    assert desk.queue.submitted == names == [item.job_name for item in result.submissions]
    assert desk.desired() == {"run": True, "generation": 1}
    (line,) = desk.history()
    assert line["verb"] == "submit"
    assert line["plan_hash"] == plan.hash
    assert line["jobs"] == {"c000": "100", "c001": "101"}


def test_comment_for_accounting(desk: Desk) -> None:
    result = desk.submit()
    ((option,), _) = desk.queue.extras
    comment = json.loads(option.removeprefix("--comment="))
    assert comment["tool"] == "exaslurm"
    assert comment["plan"] == result.plan.hash[:12]


def test_nobody_else_can_read_anything(desk: Desk) -> None:
    os.umask(0o000)
    try:
        desk.submit()
    finally:
        os.umask(0o022)
    for path in (desk.run_dir.path, *desk.run_dir.path.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_again_attaches(desk: Desk) -> None:
    first = desk.submit()
    again = desk.submit()
    assert again.attached
    assert again.submissions == first.submissions
    assert len(desk.queue.submitted) == 2


def test_another_spec_is_refused(desk: Desk) -> None:
    desk.submit()
    desk.nodes = 3
    with pytest.raises(DeploymentError, match="another spec") as caught:
        desk.submit()
    assert "exaslurm rollout SPEC" in str(caught.value.remedy)
    assert caught.value.exit_code == ExitCode.USAGE
    assert desk.run_dir.generations() == [1]
    assert len(desk.queue.submitted) == 2


def test_another_spec_after_the_end(desk: Desk) -> None:
    desk.submit()
    desk.queue.set_state("TIMEOUT")
    desk.run_dir.record("c000").write_text("{}")
    desk.nodes = 1
    assert desk.submit().generation == 2
    # What ended is noted, so that nobody asks Slurm for it again, and its replicas are withdrawn.
    assert desk.record("c001").state == "stopped"
    assert not desk.run_dir.record("c000").exists()


def test_the_same_spec_after_the_end(desk: Desk) -> None:
    desk.submit()
    desk.queue.set_state("FAILED")
    result = desk.submit()
    assert not result.attached
    assert result.generation == 2
    assert len(desk.queue.submitted) == 4
    assert desk.desired() == {"run": True, "generation": 2}


def test_cells_that_ended_are_left_to_their_owner(desk: Desk) -> None:
    desk.submit()
    desk.queue.set_state("NODE_FAIL", "101")
    assert desk.submit().attached
    assert len(desk.queue.submitted) == 2
    assert any("c001" in line and "ended" in line for line in desk.said)


def test_a_stop_that_is_not_over_is_not_attached_to(desk: Desk) -> None:
    desk.submit()
    desk.queue.obeys = False
    with pytest.raises(WaitTimeout):
        desk.stop(timeout_s=0)
    with pytest.raises(DeploymentError, match="told to stop"):
        desk.submit()
    desk.queue.set_state("CANCELLED")
    assert desk.submit().generation == 2


def test_what_has_ended_is_not_asked_for_again(desk: Desk) -> None:
    for _ in range(3):
        desk.submit()
        desk.queue.set_state("COMPLETED")
    asked: list[Sequence[str]] = []
    jobs = desk.queue.jobs
    desk.queue.jobs = lambda ids: asked.append(ids) or jobs(ids)  # type: ignore[method-assign,func-returns-value]
    desk.submit()
    assert asked == [["104", "105"]]


# --- looking first ----------------------------------------------------------------------------


def test_dry_run_touches_nothing(desk: Desk, tmp_path: Path) -> None:
    result = desk.submit(dry_run=True)
    assert sorted(result.files) == ["plan.json", "scripts/c000.sbatch", "scripts/c001.sbatch"]
    assert result.generation == 0
    assert not (tmp_path / "state").exists()
    assert desk.queue.scripts == []


def test_dry_run_shows_what_submit_writes(desk: Desk) -> None:
    shown = desk.submit(dry_run=True).files
    desk.submit()
    generation = desk.run_dir.generation(1)
    assert {name: (generation.path / name).read_text() for name in shown} == shown


def test_test_only_asks_for_each_script(desk: Desk, tmp_path: Path) -> None:
    result = desk.submit(test_only=True)
    assert result.answers == ("c000: c000.sbatch would start", "c001: c001.sbatch would start")
    assert desk.queue.scripts == [result.files[f"scripts/{c}.sbatch"] for c in ("c000", "c001")]
    assert not (tmp_path / "state").exists()
    desk.queue.failure = rejected()
    with pytest.raises(SubmitRejected):
        desk.submit(test_only=True)


# --- when it goes wrong -----------------------------------------------------------------------


def test_refused(desk: Desk) -> None:
    desk.queue.failure = rejected()
    with pytest.raises(SubmitRejected, match="Invalid qos"):
        desk.submit()
    assert desk.record("c000").state == "refused"
    assert "Invalid qos" in str(desk.record("c000").message)
    # The same generation is tried again, under a new name.
    token = desk.record("c000").token
    result = desk.submit()
    assert result.generation == 1
    assert len(desk.queue.submitted) == 2
    assert desk.record("c000").token != token


def test_refused_in_the_middle_goes_on_where_it_stopped(desk: Desk) -> None:
    desk.queue.failure = None
    original = desk.queue.submit

    def second_fails(script: Path, *, job_name: str, extra: object = ()) -> object:
        desk.queue.failure = rejected() if "c001" in job_name and not desk.said else None
        return original(script, job_name=job_name)

    desk.queue.submit = second_fails  # type: ignore[assignment,method-assign]
    desk.said.clear()
    with pytest.raises(SubmitRejected):
        submit_silently(desk)
    desk.queue.submit = original  # type: ignore[method-assign]
    result = desk.submit()
    assert result.generation == 1
    assert not result.attached
    assert [name.split("-")[2] for name in desk.queue.submitted] == ["c000", "c001"]
    assert desk.history()[0]["jobs"] == {"c000": "100"}


@pytest.mark.parametrize("first", [True, False])
def test_what_is_submitted_has_a_gateway_though_the_rest_is_refused(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """A limit of jobs: the supervisor goes on with the others as soon as it can."""
    monkeypatch.setattr(conftest, "SPEC", conftest.SPEC.replace("service", "login"))
    started: list[int] = []
    monkeypatch.setattr(
        "exaslurm.submit.submit.ensure_gateway",
        lambda run_dir, generation, **_: started.append(generation),
    )
    original = desk.queue.submit

    def one_fails(script: Path, *, job_name: str, extra: Sequence[str] = ()) -> JobId:
        desk.queue.failure = rejected() if ("c000" if first else "c001") in job_name else None
        return original(script, job_name=job_name, extra=extra)

    desk.queue.submit = one_fails  # type: ignore[method-assign]
    with pytest.raises(SubmitRejected):
        desk.submit()
    assert started == ([] if first else [1])
    assert ("the supervisor tries the others again, less and less often" in desk.said) != first


def submit_silently(desk: Desk) -> None:
    submit(desk.spec(), environ=desk.environ, slurm=desk.queue)


def test_crash_before_sbatch(desk: Desk, settled: None) -> None:
    desk.queue.failure = Crash()
    with pytest.raises(Crash):
        desk.submit()
    assert desk.record("c000").state == "intent"
    result = desk.submit()
    assert result.generation == 1
    assert [item.job_id for item in result.submissions] == ["100", "101"]


def test_crash_after_sbatch_submits_nothing_twice(desk: Desk) -> None:
    desk.queue.failure, desk.queue.late = Crash(), True
    with pytest.raises(Crash):
        desk.submit()
    assert desk.record("c000").state == "intent"
    result = desk.submit()
    assert [item.job_id for item in result.submissions] == ["100", "101"]
    cells = [name.split("-")[2] for name in desk.queue.submitted]
    assert cells == ["c000", "c001"]


def test_unclear_then_found(desk: Desk) -> None:
    desk.queue.failure, desk.queue.late = SubmitAmbiguous("who knows"), True
    with pytest.raises(SubmitAmbiguous):
        desk.submit()
    assert desk.record("c000").state == "ambiguous"
    desk.submit()
    assert desk.record("c000").state == "submitted"
    assert desk.record("c000").job_id == "100"
    assert len(desk.queue.submitted) == 2


def test_a_fresh_unclear_submission_is_waited_for(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job turns up a moment after it was looked for."""
    desk.queue.failure = SubmitAmbiguous("who knows")
    with pytest.raises(SubmitAmbiguous):
        desk.submit()
    name = desk.record("c000").job_name
    monkeypatch.setattr(survey, "_PAUSE_S", 0.01)
    looks = 0
    find = desk.queue.find_by_name

    def found_at_third_look(wanted: str, *, since_s: float | None = None) -> object:
        nonlocal looks
        looks += 1
        if looks == 3:
            desk.queue.add(name)
        return find(wanted)

    monkeypatch.setattr(desk.queue, "find_by_name", found_at_third_look)
    desk.submit()
    assert desk.record("c000").job_name == name
    assert [n.split("-")[2] for n in desk.queue.submitted] == ["c001"]


def test_unclear_and_long_ago_was_never_submitted(desk: Desk) -> None:
    desk.queue.failure = SubmitAmbiguous("who knows")
    with pytest.raises(SubmitAmbiguous):
        desk.submit()
    old = replace(desk.record("c000"), created_s=time.time() - 600)
    desk.run_dir.generation(1).submission("c000").write_text(dumps(old))
    result = desk.submit()
    assert result.generation == 1
    assert len(desk.queue.submitted) == 2


def test_two_jobs_of_one_name(desk: Desk) -> None:
    desk.queue.failure, desk.queue.late = SubmitAmbiguous("who knows"), True
    with pytest.raises(SubmitAmbiguous):
        desk.submit()
    desk.queue.add(desk.record("c000").job_name)
    with pytest.raises(SubmitAmbiguous, match="100, 101"):
        desk.submit()


def test_silent_slurm_submits_nothing(desk: Desk) -> None:
    desk.submit()
    desk.queue.silent = True
    with pytest.raises(QueryFailed):
        desk.submit()
    assert len(desk.queue.submitted) == 2


def test_a_generation_without_a_plan_is_taken_over(desk: Desk) -> None:
    desk.run_dir.make()
    desk.run_dir.generation(1).make(())
    assert desk.submit().generation == 2


def test_a_damaged_record_is_named(desk: Desk) -> None:
    desk.submit()
    path = desk.run_dir.generation(1).submission("c001")
    path.write_text("{")
    with pytest.raises(StateError, match="c001"):
        desk.submit()


def test_no_slurm_here(desk: Desk) -> None:
    with pytest.raises(Exception, match="'sbatch'") as caught:
        submit(desk.spec(), environ={**desk.environ, "PATH": str(desk.directory)})
    assert caught.value.exit_code == ExitCode.SLURM_REFUSED  # type: ignore[attr-defined]
    assert desk.record("c000").state == "refused"


def test_another_submit_is_waited_for(desk: Desk) -> None:
    desk.run_dir.make()
    with (
        deployment_lock(desk.run_dir),
        pytest.raises(DeploymentError, match=f"process {os.getpid()} on"),
        deployment_lock(desk.run_dir, timeout_s=0.2),
    ):
        pass


def test_slurm_is_not_asked_without_need(desk: Desk) -> None:
    class Untouchable(Slurm):
        def _run(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
            raise AssertionError("asked")

    submit(desk.spec(), environ=desk.environ, slurm=Untouchable(), dry_run=True)
