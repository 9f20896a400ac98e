"""Whole rollouts, on the cluster in memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from exaslurm.api.deployment import Deployment
from exaslurm.core.canary import Canary
from exaslurm.core.codec import dumps
from exaslurm.core.scale import Scale
from exaslurm.errors import DeploymentError, SubmitRejected, UserError
from exaslurm.rollout.records import read_canary, read_figures
from exaslurm.rollout.start import PolicyOptions, rollback
from exaslurm.rollout.wait import wait_over
from exaslurm.submit.records import write_desired, write_scale
from exaslurm.submit.stop import stop
from exaslurm.submit.submit import submit
from tests.rollout.conftest import NEW_SPEC, QUICK, Rolled, verbs
from tests.supervisor.conftest import SPEC
from tests.supervisor.test_scaling import SCALED


def test_a_good_one_goes_to_all(rolled: Rolled) -> None:
    started = rolled.begin()
    assert (started.rollout.stable, started.rollout.candidate) == (1, 2)
    old, new = started.rollout.names["pretend"]
    rolled.run(10)
    # Before anything of it comes up, it is said that it gets nothing.
    assert read_canary(rolled.run_dir).weights["pretend"] == {old: 100.0, new: 0.0}
    rolled.until("finishing")
    found = rolled.until("done")
    assert found.reason is None
    assert rolled.live() == ["c000.2", "c001.2"]
    desired = rolled.run_dir.read_desired()
    assert desired is not None
    assert (desired.run, desired.generation) == (True, 2)
    assert read_canary(rolled.run_dir) == Canary()
    said = verbs(rolled)
    assert said == [
        "rollout", "rollout share", "rollout step", "rollout share", "rollout cell",
        "rollout share", "rollout finishing", "rollout done",
    ]  # fmt: skip
    (step,) = rolled.history("rollout step")
    assert "requests (0 failed" in step["figures pretend"]
    assert step["plan_hash"] == started.plan.hash
    # It goes on as any deployment.
    rolled.cluster.finish(rolled.only("c000.2"), "NODE_FAIL")
    rolled.run(100)
    assert rolled.live() == ["c000.3", "c001.2"]
    assert rolled.turns()["c000.3"].generation == 2
    again = submit(rolled.directory / "new.yaml", environ=rolled.environ, slurm=rolled.cluster)
    assert again.attached
    assert len(rolled.cluster.book) == 5


def test_a_slow_one_is_stopped(rolled: Rolled) -> None:
    rolled.traffic.slower = 2.5
    rolled.begin()
    found = rolled.until("undone")
    assert "takes 0.5 s with the new version and 0.2 s with the old" in str(found.reason)
    assert rolled.live() == ["c000", "c001"]
    assert read_canary(rolled.run_dir) == Canary()
    assert verbs(rolled)[-2:] == ["rollout stopped", "rollout undone"]
    desired = rolled.run_dir.read_desired()
    assert desired is not None
    assert desired.generation == 1


@pytest.mark.parametrize("restarted", [False, True])
def test_the_name_of_a_turn_that_was_taken_back_is_not_given_again(
    rolled: Rolled, restarted: bool
) -> None:
    """Its logs, its history and what a late process of it may write bear that name."""
    rolled.broken = True
    rolled.begin()
    rolled.until("undone")
    assert rolled.run_dir.generation(2).submission("c000.2").exists()
    rolled.broken = False
    rolled.run(20)
    if restarted:
        rolled.start_supervisor()
    rolled.cluster.finish(rolled.only("c000"), "NODE_FAIL")
    rolled.run(100)
    assert rolled.live() == ["c000.3", "c001"]
    assert rolled.turns()["c000.3"].generation == 1
    rolled.cluster.finish(rolled.only("c001"), "NODE_FAIL")
    rolled.run(100)
    assert rolled.live() == ["c000.3", "c001.2"]


def test_one_that_fails_is_stopped_and_gets_nothing_at_once(rolled: Rolled) -> None:
    rolled.traffic.fails = 10
    started = rolled.begin()
    found = rolled.until("undoing")
    assert "requests to the new version (0 of" in str(found.reason)
    old, new = started.rollout.names["pretend"]
    assert read_canary(rolled.run_dir).weights["pretend"] == {old: 100.0, new: 0.0}


def test_one_whose_first_request_fails_gets_no_request(rolled: Rolled) -> None:
    rolled.broken = True
    rolled.begin()
    found = rolled.until("undone")
    assert "its first request failed: /v1/completions answered 500" in str(found.reason)
    assert "rollout share" not in verbs(rolled)
    assert rolled.live() == ["c000", "c001"]


def test_one_that_does_not_come_up_in_time(rolled: Rolled) -> None:
    rolled.cluster.up_s = 1e6
    rolled.begin()
    found = rolled.until("undone", within_s=1e5)
    assert "does not serve" in str(found.reason)
    assert rolled.live() == ["c000", "c001"]


def test_one_that_fails_to_start_twice(rolled: Rolled) -> None:
    rolled.begin()
    rolled.cluster.up_s = 1e6
    for turn in ("c000.2", "c000.3"):
        rolled.run(60)
        rolled.run_dir.generation(2).failure(turn).write_text("no driver\n")
        rolled.cluster.finish(rolled.only(turn), "FAILED")
    found = rolled.until("undone")
    assert found.reason == "2 jobs failed, c000.3 last: no driver"


def test_a_refused_one_waits(rolled: Rolled) -> None:
    """There is no room for two: the old one serves on, and status can tell why."""
    rolled.cluster.refusals = [SubmitRejected("QOSMaxSubmitJobPerUserLimit", transient=True)] * 2
    rolled.begin()
    rolled.run(20)
    assert "QOSMaxSubmitJobPerUserLimit" in rolled.note()
    assert rolled.live() == ["c000", "c001"]
    rolled.until("done")


def test_silent_routers_say_nothing_against_it(rolled: Rolled) -> None:
    rolled.traffic.silent = True
    rolled.begin()
    rolled.until("finishing")
    figures = read_figures(rolled.run_dir)
    assert figures is not None
    assert (figures.silent, figures.counted) == (("http://gw:1",), {})
    assert "only 0 of 50 requests" in rolled.history("rollout step")[0]["note"]


def test_rollback_while_it_goes_on(rolled: Rolled) -> None:
    rolled.begin()
    while rolled.rollout.share_percent < 100:
        rolled.run(10)
    assert rolled.rollout.lanes == {"c000": (2,), "c001": (1, 2)}
    back = rollback(rolled.run_dir, environ=rolled.environ, slurm=rolled.cluster)
    assert back.undone
    found = rolled.until("undone")
    assert "has taken it back" in str(found.reason)
    # The cell that had gone over has its old version again.
    assert rolled.live() == ["c000.3", "c001"]
    assert rolled.turns()["c000.3"].generation == 1
    with pytest.raises(DeploymentError, match="runs as it did before"):
        rollback(rolled.run_dir, environ=rolled.environ, slurm=rolled.cluster)


def test_rollback_after_it(rolled: Rolled) -> None:
    rolled.begin()
    rolled.until("done")
    began = rollback(
        rolled.run_dir,
        options=PolicyOptions(hold_s=10.0),
        environ=rolled.environ,
        slurm=rolled.cluster,
    )
    assert (began.rollout.stable, began.rollout.candidate) == (2, 3)
    assert began.rollout.steps_percent == (100.0,)
    first = rolled.run_dir.generation(1)
    third = rolled.run_dir.generation(3)
    assert third.plan.read_text() == first.plan.read_text()
    assert third.spec.read_text() == first.spec.read_text()
    rolled.until("done")
    assert rolled.live() == ["c000.3", "c001.3"]
    # And there again.
    began = rollback(rolled.run_dir, environ=rolled.environ, slurm=rolled.cluster)
    assert (began.rollout.stable, began.rollout.candidate) == (3, 4)
    rolled.until("done")
    assert {item.generation for item in rolled.turns().values() if item.state == "submitted"} == {4}


@pytest.mark.parametrize(("nodes", "end"), [(3, 3), (1, 1)])
def test_another_number_of_cells(rolled: Rolled, nodes: int, end: int) -> None:
    spec = NEW_SPEC.replace("nodes: 2", f"nodes: {nodes}").replace(
        "replicas: 2", f"replicas: {nodes}"
    )
    rolled.begin(spec)
    while rolled.rollout.state != "done":
        rolled.run(10)
    turns = {item.cell: item for item in rolled.turns().values() if item.state == "submitted"}
    assert len(turns) == end
    assert {item.generation for item in turns.values()} == {2}


def test_only_the_time_limit_changes(rolled: Rolled) -> None:
    """No version differs: cells go over, and no shares are set."""
    started = rolled.begin(SPEC.replace("00:10:00", "00:20:00"))
    assert started.rollout.names == {}
    rolled.until("done")
    assert not rolled.run_dir.canary.exists()
    assert rolled.live() == ["c000.2", "c001.2"]


def test_shares_of_other_names_stay(rolled: Rolled) -> None:
    mine = Canary(weights={"mine": {"a": 1.0, "b": 2.0}})
    rolled.run_dir.canary.write_text(dumps(mine))
    rolled.begin()
    rolled.until("done")
    assert read_canary(rolled.run_dir) == mine


# --- what is refused ------------------------------------------------------------------------------


def test_while_another_is_under_way(rolled: Rolled) -> None:
    rolled.begin()
    with pytest.raises(DeploymentError, match="going over from generation 1 to 2") as caught:
        rolled.begin(NEW_SPEC.replace("blue", "red"))
    assert "exaslurm rollback hello" in str(caught.value.remedy)
    with pytest.raises(DeploymentError, match="going over"):
        submit(rolled.directory / "new.yaml", environ=rolled.environ, slurm=rolled.cluster)
    with pytest.raises(DeploymentError, match="going over"):
        rollback(rolled.run_dir, to=7, environ=rolled.environ, slurm=rolled.cluster)


def test_the_same_spec(rolled: Rolled) -> None:
    with pytest.raises(DeploymentError, match="runs with this spec already"):
        rolled.begin(SPEC)


def test_nothing_runs(rolled: Rolled) -> None:
    for job in rolled.cluster.live():
        rolled.cluster.finish(job, "CANCELLED")
    with pytest.raises(DeploymentError, match="no job of deployment 'hello' runs"):
        rolled.begin()
    stop(rolled.run_dir, environ=rolled.environ, slurm=rolled.cluster)
    with pytest.raises(DeploymentError, match="does not run"):
        rolled.begin()


def test_another_site(rolled: Rolled) -> None:
    sites = rolled.directory / ".config/exaslurm/sites"
    sites.mkdir(parents=True)
    (sites / "lab2.yaml").write_text("schema: exaslurm/site/v1\nname: lab2\nextends: lab\n")
    with pytest.raises(DeploymentError, match="runs on site 'lab'"):
        rolled.begin(NEW_SPEC.replace("site: lab", "site: lab2"))
    assert rolled.run_dir.generations() == [1]


def test_what_is_done_is_not_stopped(rolled: Rolled) -> None:
    """The supervisor was killed when the new one was wanted and before it had said so."""
    rolled.begin()
    rolled.until("finishing")
    write_desired(rolled.run_dir, run=True, generation=2)
    with pytest.raises(DeploymentError, match="has just ended"):
        rollback(rolled.run_dir, environ=rolled.environ, slurm=rolled.cluster)
    rolled.until("done")
    assert rolled.live() == ["c000.2", "c001.2"]


def test_waiting_outlives_a_file_system_that_is_away(rolled: Rolled) -> None:
    rolled.begin()
    found, away = rolled.until("done"), rolled.run_dir.path.with_name("away")
    rolled.run_dir.path.rename(away)
    told: list[str] = []

    def sleep(_: float) -> None:
        away.rename(rolled.run_dir.path)

    over = wait_over(rolled.run_dir, 2, timeout_s=10.0, talk=told.append, sleep=sleep)
    assert over == found
    assert "is its file system mounted?" in told[0]
    assert len(told) == 2


def test_nothing_to_take_back(rolled: Rolled) -> None:
    with pytest.raises(DeploymentError, match="has had no rollout"):
        rollback(rolled.run_dir, environ=rolled.environ, slurm=rolled.cluster)
    with pytest.raises(DeploymentError, match="no generation 9"):
        rollback(rolled.run_dir, to=9, environ=rolled.environ, slurm=rolled.cluster)


def test_a_rollout_of_before_it_was_submitted_anew_is_not_taken_back(rolled: Rolled) -> None:
    rolled.begin()
    rolled.until("done")
    stop(rolled.run_dir, environ=rolled.environ, slurm=rolled.cluster)
    path = rolled.directory / "third.yaml"
    path.write_text(NEW_SPEC.replace("blue", "red"))
    submit(path, environ=rolled.environ, slurm=rolled.cluster)
    with pytest.raises(DeploymentError, match="was submitted anew since its last rollout"):
        rollback(rolled.run_dir, environ=rolled.environ, slurm=rolled.cluster)
    back = rollback(rolled.run_dir, to=2, environ=rolled.environ, slurm=rolled.cluster)
    assert (back.rollout.stable, back.rollout.candidate) == (3, 4)


# --- stop and submit ------------------------------------------------------------------------------


def test_stop_ends_both_generations(rolled: Rolled) -> None:
    rolled.begin()
    while not rolled.rollout.share_percent:
        rolled.run(10)
    assert rolled.live() == ["c000", "c000.2", "c001"]
    stop(rolled.run_dir, environ=rolled.environ, slurm=rolled.cluster)
    assert rolled.live() == []
    assert rolled.rollout.state == "undone"
    assert rolled.run_dir.current() == rolled.generation
    # What comes then has nothing to do with it.
    submit(rolled.directory / "spec.yaml", environ=rolled.environ, slurm=rolled.cluster)
    rolled.start_supervisor()
    rolled.run(200)
    assert rolled.live() == ["c000", "c001"]


def test_what_a_killed_command_left_is_written_anew(rolled: Rolled) -> None:
    rolled.begin()
    rolled.run_dir.rollout.unlink()  # as if it had been killed just before
    started = rolled.begin(NEW_SPEC.replace("blue", "red"))
    assert started.rollout.candidate == 2
    assert "red" in rolled.run_dir.generation(2).spec.read_text()
    rolled.until("done")


def test_a_decision_of_somebody_else_counts(rolled: Rolled) -> None:
    """Between look and lock the rollout was taken back."""
    rolled.begin()
    manager = rolled.supervisor._managers[0]
    rolled.cluster.advance(10, rolled.run_dir)
    look = rolled.supervisor._observer.look()
    rollback(rolled.run_dir, environ=rolled.environ, slurm=rolled.cluster)
    assert manager.step(replace(look)) is True
    assert rolled.rollout.state == "undoing"


def test_the_policy_is_the_specs_where_nobody_says_otherwise(rolled: Rolled) -> None:
    spec = NEW_SPEC + "rollout: {steps_percent: [10, 100], hold_s: 7, failures: 0.2, surge: 2}\n"
    policy = rolled.begin(spec, PolicyOptions(surge=3)).rollout.policy
    assert policy.steps_percent == (10.0, 100.0)
    assert (policy.hold_s, policy.failures, policy.surge) == (7.0, 0.2, 3)
    assert json.loads(rolled.run_dir.rollout.read_text())["policy"]["hold_s"] == 7.0
    assert QUICK.over(policy).min_requests == 50


# --- scaling --------------------------------------------------------------------------------------


def test_what_is_scaled_away_does_not_come_up(rolled: Rolled) -> None:
    """One replica of two is wanted: one cell goes over, and that is all of it."""
    rolled.scale({"pretend:base": 1})
    rolled.run(200)
    assert rolled.live() == ["c000"]
    started = rolled.begin()
    assert (started.rollout.stable_cells, started.rollout.candidate_cells) == (("c000",),) * 2
    while rolled.rollout.state != "done":
        rolled.run(10)
    assert rolled.live() == ["c000.2"]
    rolled.scale({})
    rolled.run(100)
    assert {item.generation for item in rolled.turns().values() if item.state == "submitted"} == {2}
    assert len(rolled.live()) == 2


def test_scaled_away_on_the_way(rolled: Rolled) -> None:
    rolled.begin()
    while rolled.rollout.cells < 2:
        rolled.run(10)
    rolled.scale({"pretend:base": 1})
    while rolled.rollout.state != "done":
        rolled.run(10)
    assert rolled.live() == ["c000.2"]


@pytest.mark.parametrize("fixed", [False, True])
def test_over_to_a_spec_that_is_not_scaled(tmp_path: Path, fixed: bool) -> None:
    """What was wanted for the load of that moment is not what is wanted for ever."""
    site = Rolled(tmp_path, spec=SCALED)
    site.run(100)
    names = ("pretend:base",) if fixed else ()
    write_scale(site.run_dir, Scale(replicas={"pretend:base": 1}, fixed=names))
    assert site.live() == ["c000"]
    site.begin()
    while site.rollout.state != "done":
        site.run(10)
    site.run(100)
    assert len(site.live()) == (1 if fixed else 2)
    assert {item.generation for item in site.turns().values() if item.state == "submitted"} == {2}


def test_from_python(rolled: Rolled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exaslurm.rollout.start.Slurm", lambda _: rolled.cluster)
    hello = Deployment(rolled.run_dir.path, environ=rolled.environ)
    with pytest.raises(UserError, match="'other'"):
        hello.rollout(NEW_SPEC.replace("deployment: hello", "deployment: other"))
    begun = hello.rollout(NEW_SPEC, options=QUICK)
    assert (begun.state, begun.candidate) == ("rising", 2)
    assert hello.rollback().state == "undoing"
    rolled.until("undone")
    assert hello.wait_over(begun).state == "undone"
    assert [entry.verb for entry in hello.history()][-2:] == ["rollback", "rollout undone"]
