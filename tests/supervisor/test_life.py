"""The life of a deployment under a supervisor, on a cluster in memory."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from pathlib import Path

import pytest

from exaslurm.core.codec import dumps
from exaslurm.core.submission import JobNotice
from exaslurm.errors import StateError, SubmitAmbiguous, SubmitRejected
from exaslurm.slurm.parse import gone
from exaslurm.submit import records
from exaslurm.submit.records import write_desired
from exaslurm.submit.survey import SETTLED_S
from exaslurm.supervisor.decide import decide
from exaslurm.supervisor.model import Close, Submit
from exaslurm.util.files import read_text
from tests.supervisor.conftest import POLL_S, SPEC, Cluster, Site


def turns(site: Site) -> dict[str, str]:
    return {name: item.state for name, item in site.turns().items()}


def test_nothing_is_done_while_all_is_well(site: Site) -> None:
    site.run(200)
    assert turns(site) == {"c000": "submitted", "c001": "submitted"}
    assert len(site.cluster.book) == 2
    item = site.turns()["c000"]
    assert item.served_s is not None
    assert item.started_s is not None
    assert item.served_s - item.started_s == pytest.approx(30, abs=POLL_S)
    assert site.note() == ""


def test_roll_over(site: Site) -> None:
    """The successor serves before the old one drains, and the old one ends before its time."""
    site.run(60)
    fewest = 1
    for _ in range(60):
        site.run(POLL_S)
        fewest = min(fewest, len(site.cluster.serving("c000")))
    assert fewest == 1
    old, new = site.only("c000"), site.only("c000.2")
    assert old.end == "COMPLETED"
    assert new.submitted_s == pytest.approx(old.start_s + 300, abs=2 * POLL_S)
    assert turns(site)["c000"] == "stopped"
    assert [line["cell"] for line in site.history("drain")] == ["c000", "c001"]
    assert not site.run_dir.record("c000").exists()
    assert site.run_dir.record("c000.2").exists()


def test_roll_over_again_and_again(site: Site) -> None:
    site.run(60)
    for _ in range(300):
        site.run(POLL_S)
        assert len(site.cluster.serving("c000")) >= 1
        assert len([j for j in site.cluster.live() if j.turn.startswith("c000")]) <= 2
    assert site.only("c000.10").end is None
    assert {job.end for job in site.cluster.book.values()} <= {"COMPLETED", None}


def test_a_long_queue_is_met_earlier(site: Site) -> None:
    """Observed waits count: the next successor is submitted sooner than the floor says."""
    site.cluster.wait_s = 350.0
    site.run(1000)
    second = site.only("c000.2")
    assert site.only("c000").end == "COMPLETED"  # nobody knew; it was drained in its last minute
    third = site.only("c000.3")
    assert third.submitted_s - second.start_s < 150
    site.run(400)
    assert second.end == "COMPLETED"


def test_requests_in_flight_are_waited_for(site: Site) -> None:
    site.cluster.up_s = 10.0
    site.run(60)
    site.only("c000").busy = 3
    site.run(380)
    assert [line["cell"] for line in site.history("stop")] == ["c001", "c000"]
    old, idle = site.only("c000"), site.only("c001")
    assert old.stop_s is not None
    assert idle.stop_s is not None
    assert old.stop_s >= idle.stop_s + POLL_S  # it had drain_s (30 s) longer


def test_cancelled_by_somebody(site: Site) -> None:
    site.run(100)
    site.cluster.finish(site.only("c000"), "CANCELLED")
    site.run(POLL_S)
    assert turns(site) == {"c000": "stopped", "c000.2": "submitted", "c001": "submitted"}
    assert not site.run_dir.record("c000").exists()
    site.run(60)
    assert [job.turn for job in site.cluster.serving("c000")] == ["c000.2"]
    (line,) = site.history("submit")[1:]
    assert line["cell"] == "c000.2"
    assert "CANCELLED" in line["reason"]
    assert line["by"].startswith("supervisor ")


def test_failing_again_and_again_is_tried_less_and_less_often(site: Site) -> None:
    site.cluster.up_s = 1e6
    for _ in range(180):
        site.run(POLL_S)
        for job in site.cluster.live():
            if site.cluster.now_s >= job.start_s:
                site.cluster.finish(job, "FAILED")
    mine = [job.submitted_s for job in site.cluster.book.values() if job.turn.startswith("c000")]
    gaps = [later - earlier for earlier, later in itertools.pairwise(mine)]
    assert len(mine) < 10
    assert gaps[0] < 50 < gaps[3] < gaps[4]
    assert "the next try is at" in site.note()
    assert "FAILED" in site.note()


def test_a_limit_of_submissions(site: Site) -> None:
    site.run(60)
    words = "Slurm refused c000.2.sbatch: QOSMaxSubmitJobPerUserLimit"
    site.cluster.refusals = [SubmitRejected(words) for _ in range(6)]
    site.run(300)
    assert turns(site)["c000.2"] == "refused"
    assert words in site.note()
    assert "the next try is at" in site.note()
    tries = len(site.history("submit refused"))
    assert tries < 7
    assert site.only("c000").end is None
    site.run(400)
    assert len(site.cluster.serving("c000")) == 1
    assert "c000.3" not in turns(site)  # a refusal takes no number


def test_room_for_a_refused_one_is_used_at_once(site: Site) -> None:
    site.run(60)
    site.cluster.refusals = [SubmitRejected("AssocMaxSubmitJobLimit") for _ in range(40)]
    site.run(510)
    assert site.cluster.serving("c000")
    site.cluster.refusals.clear()
    site.run(70)
    old, new = site.only("c000"), site.only("c000.2")
    assert old.end == "COMPLETED"  # drained in its last minute
    assert old.end_s is not None
    assert new.submitted_s - old.end_s <= 2 * POLL_S


def test_without_overlap_the_gap_is_measured(site: Site) -> None:
    """Room for one job only: what was begun is finished, and the time without is told."""
    site.cluster.most = 2  # of both cells together
    site.run(60)
    old = site.only("c000")
    old.busy = 1
    drained_s = None
    for _ in range(80):
        site.run(10)
        if old.draining and drained_s is None:
            drained_s = site.cluster.now_s
            assert old.start_s + old.limit_s - drained_s <= 80
            old.busy = 0
        if site.turns().get("c000.2") and site.turns()["c000.2"].served_s is not None:
            break
    assert drained_s is not None
    assert old.end == "COMPLETED"
    new = site.turns()["c000.2"]
    assert new.gap_s is not None
    assert new.served_s is not None
    assert new.gap_s == new.served_s - drained_s
    told = [line for line in site.history("serves") if line["cell"] == "c000.2"]
    assert [line["gap_s"] for line in told] == [f"{new.gap_s:.0f}"]
    first = [line for line in site.history("serves") if line["cell"] == "c000"]
    assert "gap_s" not in first[0]


def maintenance(site: Site, in_s: float, nodes: str = "c[1-4]") -> str:
    begin, end = (
        time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(site.cluster.now_s + s))
        for s in (in_s, in_s + 3600)
    )
    return f"ReservationName=m1 StartTime={begin} EndTime={end} Nodes={nodes} Flags=MAINT\n"


def test_a_waiting_job_is_made_shorter_and_gets_its_time_back(tmp_path: Path) -> None:
    site = Site(tmp_path, Cluster(limit_s=3600.0), spec=SPEC.replace("00:10:00", "01:00:00"))
    site.run(60)
    site.cluster.wait_s = 100_000.0
    old = site.only("c000")
    site.cluster.finish(old, "NODE_FAIL")
    site.run(10)
    new = site.only("c000.2")
    assert new.limit_s == 3600.0
    site.cluster.reservations = maintenance(site, 1800)
    site.run(80)
    assert 900 <= new.limit_s < 1800 - 60
    assert site.turns()["c000.2"].limited_by == "m1"
    line = site.history("time limit")[-1]
    assert (line["cell"], line["minutes"]) == ("c000.2", str(int(new.limit_s // 60)))
    assert "m1" in line["reason"]
    site.cluster.reservations = "No reservations in the system\n"
    site.run(80)
    assert new.limit_s == 3600.0  # as planned
    assert site.turns()["c000.2"].limited_by is None
    count = len(site.history("time limit"))
    site.run(200)
    assert len(site.history("time limit")) == count


def test_a_cell_leaves_nodes_before_their_maintenance(site: Site) -> None:
    """Of two cells only the one on the maintenance's nodes gets a successor early."""
    site.run(60)
    site.only("c001").node = "c2"
    site.cluster.reservations = maintenance(site, 200, nodes="c1")
    site.run(100)
    assert "c000.2" in turns(site)
    assert "c001.2" not in turns(site)
    assert "maintenance m1" in site.history("submit")[-1]["reason"]
    site.run(80)
    assert site.only("c000").draining or site.only("c000").end == "COMPLETED"
    assert site.cluster.serving("c000")


def test_a_suspended_cell_is_replaced(site: Site) -> None:
    site.run(60)
    site.only("c000").suspended = True
    site.run(60)
    assert "c000.2" not in turns(site)
    site.run(20)
    assert "suspended" in site.history("submit")[-1]["reason"]
    site.run(60)
    assert site.cluster.serving("c000")


@pytest.mark.parametrize("after_s", [30, 100])
def test_a_job_on_a_node_that_hangs_is_replaced(site: Site, after_s: float) -> None:
    """Slurm counts it until somebody reboots the node, whether it has served or not."""
    site.run(after_s)
    job = site.only("c000")
    site.cluster.finish(job, "NODE_FAIL")
    job.stuck = True
    site.run(150)
    assert site.cluster.serving("c000")[0].turn == "c000.2"
    assert site.turns()["c000"].state == "submitted"
    job.stuck = False
    site.run(20)
    assert site.turns()["c000"].state == "stopped"


def test_a_warned_cell_is_drained_where_others_serve_the_same(site: Site) -> None:
    """Preemption: both cells serve the same shard, so the warned one takes nothing new."""
    site.run(60)
    old = site.only("c000")
    old.limit_s = site.cluster.now_s + 300 - old.start_s
    notice = JobNotice(signal="USR1", time_s=site.cluster.now_s)
    path = site.generation.notice("c000")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dumps(notice))
    site.run(20)
    assert old.draining
    assert site.cluster.serving("c001")
    assert "c000.2" in turns(site)
    site.run(60)
    assert site.cluster.serving("c000")


@pytest.mark.parametrize("forgets", [False, True])
def test_an_unclear_answer_is_looked_up(site: Site, forgets: bool) -> None:
    site.cluster.forgets = forgets
    site.run(60)
    site.cluster.unclear = [SubmitAmbiguous("it is not known"), SubmitAmbiguous("it is not known")]
    site.run(400)
    assert site.only("c000.2").end is None
    assert turns(site) == {
        "c000": "stopped", "c000.2": "submitted", "c001": "stopped", "c001.2": "submitted"
    }  # fmt: skip
    assert len(site.history("submit found")) == 2


def test_a_lost_submission_is_made_again_only_when_it_cannot_turn_up(site: Site) -> None:
    site.run(60)
    site.cluster.lost = [SubmitAmbiguous("it is not known")]
    site.run(300)
    assert "looking for it" in site.note() or "looking for it" in site.note("c001")
    site.run(200)
    names = sorted(job.turn for job in site.cluster.book.values())
    assert names == ["c000", "c000.2", "c001", "c001.2"]


def test_a_lost_submission_of_a_host_whose_clock_is_ahead(site: Site) -> None:
    """It is waited for as long as any other, not until the clocks agree."""
    item = site.turns()["c000"]
    site.cluster.finish(site.only("c000"), "CANCELLED")
    del site.cluster.book[str(item.job_id)]
    ahead_s = site.cluster.now_s + 7200
    site.write("c000", replace(item, state="intent", job_id=None, created_s=ahead_s))
    site.run(SETTLED_S - 20)
    assert site.turns()["c000"].state == "intent"
    site.run(60)
    assert site.turns()["c000"].state == "submitted"
    assert site.turns()["c000"].before == (item.token,)


def test_silence_is_no_end(site: Site) -> None:
    site.run(100)
    site.cluster.silent = True
    site.run(400)
    assert len(site.cluster.book) == 2
    assert turns(site) == {"c000": "submitted", "c001": "submitted"}
    site.cluster.silent = False
    site.run(100)
    assert len(site.cluster.serving("c000")) == 1


def test_a_job_that_slurm_lost_and_that_serves_is_left_alone(site: Site) -> None:
    site.run(100)
    # Slurm's controller began anew; the cell's own still answers.
    job, jobs = site.only("c000"), site.cluster.jobs
    site.cluster.jobs = lambda ids: {**jobs(ids), job.id: gone(job.id)}  # type: ignore[method-assign]
    site.run(100)
    assert turns(site)["c000"] == "submitted"
    assert len(site.cluster.book) == 2


def test_what_is_over_is_not_read_again_and_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell has a new job each day, for months."""
    site.run(100)
    over = replace(site.turns()["c000"], state="stopped", ended_s=site.cluster.now_s, end="TIMEOUT")
    for number in range(2, 40):
        site.write(f"c001.{number}", replace(over, cell=f"c001.{number}"))
    look = site.supervisor._observer.look
    assert len(look().submissions) == 40
    read: list[str] = []

    def reading(path: Path) -> str:
        read.append(path.stem)
        return read_text(path)

    monkeypatch.setattr(records, "read_text", reading)
    assert len(look().submissions) == 40
    assert read == ["c000", "c001"]


def test_what_cannot_be_read_is_not_taken_for_absent(site: Site) -> None:
    site.run(100)
    path = site.generation.submission("c000")
    path.write_text("{")
    with pytest.raises(StateError):
        site.supervisor.round()
    path.unlink()
    site.generation.submissions.rename(site.generation.path / "elsewhere")
    with pytest.raises(StateError):
        site.supervisor.round()
    assert len(site.cluster.book) == 2


def test_too_few_nodes(site: Site) -> None:
    site.run(100)
    site.only("c000").ready = 0
    site.run(50)
    assert "c000.2" not in turns(site)
    site.run(30)
    assert "lost too many nodes" in site.history("submit")[-1]["reason"]
    site.run(120)
    assert [job.turn for job in site.cluster.serving("c000")] == ["c000.2"]
    assert site.only("c000").end is not None


def test_a_warning_of_slurm(site: Site) -> None:
    site.run(100)
    site.generation.notice("c000").write_text('{"signal":"USR1","time_s":1.0}')
    site.run(2 * POLL_S)
    assert "warned" in site.history("submit")[-1]["reason"]
    assert site.only("c000.2")


def test_a_warning_that_cannot_be_understood_stops_nothing(site: Site) -> None:
    site.run(100)
    site.generation.notice("c000").write_text('{"signal": "USR1", "of_another_version": 1}')
    site.cluster.finish(site.only("c001"), "NODE_FAIL")
    site.run(100)
    assert sorted(job.turn for job in site.cluster.live()) == ["c000", "c001.2"]


def test_a_manager_that_fails_costs_no_cell_its_job(site: Site) -> None:
    class Broken:
        def step(self, look: object) -> bool:
            raise ValueError(f"nobody foresaw this of {look!r:.10}")

    site.supervisor._managers = [Broken()]
    site.run(100)
    site.cluster.finish(site.only("c001"), "NODE_FAIL")
    site.run(100)
    assert sorted(job.turn for job in site.cluster.live()) == ["c000", "c001.2"]


def test_nothing_after_a_stop(site: Site) -> None:

    site.run(100)
    write_desired(site.run_dir, run=False, generation=1)
    site.cluster.finish(site.only("c000"), "CANCELLED")
    site.run(100)
    assert not site.supervisor.round().wanted
    assert len(site.cluster.book) == 2


def test_a_stop_between_decision_and_effect(site: Site) -> None:

    site.run(100)
    site.cluster.finish(site.only("c000"), "CANCELLED")
    observer, actor = site.supervisor._observer, site.supervisor._actor
    look = observer.look()
    decision = decide(look.world, site.cluster.now_s)
    assert [type(effect) for effect in decision.effects] == [Close, Submit]
    write_desired(site.run_dir, run=False, generation=1)
    for effect in decision.effects:
        actor.do(effect, look)
    assert len(site.cluster.book) == 2


def test_a_rollout_and_back(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell of the other generation comes up beside, the rest goes over; then all comes back."""
    monkeypatch.setattr("tests.supervisor.conftest.LIMIT_S", 1e6)
    for job in site.cluster.book.values():
        job.limit_s = 1e6
    site.run(100)
    site.plan_again()
    site.roll_out("rising", {"c000": (1, 2)})
    site.run(200)
    assert [job.turn for job in site.cluster.serving("c000")] == ["c000", "c000.2"]
    assert site.turns()["c000.2"].generation == 2
    assert site.run_dir.generation(2).script("c000.2").exists()
    site.roll_out("rising", {"c000": (2,), "c001": (2,)})
    fewest = 1
    for _ in range(40):
        site.run(POLL_S)
        fewest = min(fewest, *(len(site.cluster.serving(cell)) for cell in ("c000", "c001")))
    assert fewest == 1
    assert sorted(job.turn for job in site.cluster.live()) == ["c000.2", "c001.2"]
    write_desired(site.run_dir, run=True, generation=2)
    site.roll_out("done", {})
    site.run(100)
    assert sorted(job.turn for job in site.cluster.live()) == ["c000.2", "c001.2"]
    # What the first generation left is known to have ended, and not read again.
    site.cluster.finish(site.only("c000.2"), "NODE_FAIL")
    site.run(100)
    assert site.turns()["c000.3"].generation == 2


def test_an_undone_rollout_leaves_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.supervisor.conftest.LIMIT_S", 1e6)
    for job in site.cluster.book.values():
        job.limit_s = 1e6
    site.run(100)
    site.plan_again()
    site.roll_out("rising", {"c000": (1, 2), "c001": (1, 2)})
    site.run(20)  # the new jobs are pending
    site.roll_out("undoing", {})
    site.run(100)
    assert sorted(job.turn for job in site.cluster.live()) == ["c000", "c001"]
    site.roll_out("undone", {})
    site.run(200)
    assert sorted(job.turn for job in site.cluster.live()) == ["c000", "c001"]


def test_scaled_to_nothing_and_back(site: Site) -> None:
    site.run(100)
    site.scale({"pretend:base": 1})
    site.run(200)
    assert [job.turn for job in site.cluster.live()] == ["c000"]
    site.scale({"pretend:base": 0})
    site.run(200)
    assert site.cluster.live() == []
    site.run(300)
    assert site.cluster.live() == []
    site.scale({})
    site.run(100)
    assert sorted(job.turn for job in site.cluster.live()) == ["c000.2", "c001.2"]


def test_a_decision_of_before_is_not_carried_out(site: Site) -> None:
    """What is wanted has changed between decision and effect."""
    site.run(100)
    site.cluster.finish(site.only("c000"), "CANCELLED")
    look = site.supervisor._observer.look()
    effects = decide(look.world, site.cluster.now_s).effects
    site.scale({"pretend:base": 1})
    for effect in effects:
        site.supervisor._actor.do(effect, look)
    assert len(site.cluster.book) == 2
    assert site.turns()["c000"].state == "submitted"


def test_two_supervisors_submit_once(site: Site) -> None:

    site.run(100)
    site.cluster.finish(site.only("c000"), "CANCELLED")
    first = site.supervisor
    site.start_supervisor()
    looks = [each._observer.look() for each in (first, site.supervisor)]
    for each, look in zip((first, site.supervisor), looks, strict=True):
        for effect in decide(look.world, site.cluster.now_s).effects:
            each._actor.do(effect, look)
    assert [job.turn for job in site.cluster.live()] == ["c001", "c000.2"]
    site.run(100)
    assert len(site.cluster.book) == 3


def test_the_warning_before_the_time_limit_tells_nothing_new(site: Site) -> None:
    """A job that is shorter than its --signal is warned at once."""
    site.run(100)
    now_s = site.cluster.now_s
    end_s = site.only("c000").start_s + 600
    text = site.generation.script("c000").read_text()
    asked_s = float(text.split("--signal=B:USR1@")[1].split()[0])
    notice = site.generation.notice("c000")
    notice.write_text('{"signal":"USR1","time_s":%f}' % (end_s - asked_s - 30))
    site.run(2 * POLL_S)
    assert "c000.2" not in turns(site)
    assert now_s < end_s - 300


def test_a_requeued_job_is_not_taken_for_its_former_self(site: Site) -> None:
    site.run(60)
    old = site.only("c000")
    old.start_s = old.serves_s = site.cluster.now_s + 1e6
    site.run(30)
    assert old.end == "CANCELLED"
    assert site.turns()["c000"].end == "CANCELLED"
    assert [line["reason"] for line in site.history("cancel")] == ["Slurm has requeued it"]
    site.run(70)
    assert [job.turn for job in site.cluster.serving("c000")] == ["c000.2"]
