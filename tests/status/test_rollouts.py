from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from exaslurm.cli.status_text import rollout_lines
from exaslurm.core.codec import dumps
from exaslurm.core.rollout import Answers, Pair, Rollout, RolloutFigures
from exaslurm.core.submission import Submission
from exaslurm.rundir import RunDir
from exaslurm.status.rollouts import rollout_status, turns_to_show
from tests.status.conftest import make_plan


def submission(turn: str, generation: int, state: str = "submitted") -> Submission:
    return Submission(
        deployment="hello", cell=turn, generation=generation, plan_hash="", token="", job_name="",
        state=state, created_s=1.0,  # type: ignore[arg-type]
    )  # fmt: skip


def shown(lanes: dict[str, tuple[int, ...]] | None, *items: Submission) -> list[tuple[str, int]]:
    plans = {1: make_plan(cells=2), 2: make_plan(cells=2)} if lanes else {1: make_plan(cells=2)}
    known = {item.cell: item for item in items}
    return [(cell.name, number) for cell, number in turns_to_show(plans, known, lanes)]


def test_turns_of_one_generation() -> None:
    first, second = submission("c000", 1), submission("c001", 1)
    assert shown(None, first, second) == [("c000", 1), ("c001", 1)]
    ended = replace(first, state="stopped")
    assert shown(None, ended, submission("c000.2", 1), second) == [("c000.2", 1), ("c001", 1)]
    assert shown(None, ended, second) == [("c000", 1), ("c001", 1)]
    assert shown(None, second) == [("c000", 1), ("c001", 1)]


def test_turns_of_both() -> None:
    first, second = submission("c000", 1), submission("c001", 1)
    lanes = {"c000": (1, 2), "c001": (1,)}
    new = submission("c000.2", 2)
    assert shown(lanes, first, second, new) == [("c000", 1), ("c000.2", 2), ("c001", 1)]
    moved = {"c000": (2,), "c001": (1, 2)}
    gone = replace(first, state="stopped")
    # One that is wanted and was not submitted yet is shown; one that is over and not wanted is not.
    assert shown(moved, gone, second, new) == [("c000.2", 2), ("c001", 1), ("c001", 2)]
    # One that is not wanted any more is shown as long as it lives.
    assert ("c000", 1) in shown(moved, first, second, new)


def test_what_is_said_of_it(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    rollout = Rollout(
        stable=1, candidate=2, state="rising", names={"chat": ("a", "b")}, share_percent=5.0
    )
    figures = RolloutFigures(
        candidate=2,
        since_s=0.0,
        counted={"chat": Pair(old=Answers(requests=95), new=Answers(requests=5))},
        silent=("http://gw2:1",),
    )
    run_dir.rollout_figures.write_text(dumps(figures))
    found = rollout_status(run_dir, rollout, 1)
    assert found is not None
    lines = rollout_lines(found)
    assert "step 1 of 4 (5 %), 5 % of the requests go to the new version" in lines[0]
    assert "5 requests (0 failed) new; 95 requests (0 failed) old" in lines[1]
    assert "http://gw2:1" in lines[2]
    assert rollout_status(run_dir, replace(rollout, state="done"), 2) is None
    undone = replace(rollout, state="undone", reason="it is slow")
    told = rollout_status(run_dir, undone, 1)
    assert told is not None
    assert told.sentence == "generation 1 -> 2: taken back: it is slow"
    # A later generation has nothing to do with it.
    assert rollout_status(run_dir, undone, 3) is None
    assert rollout_status(run_dir, rollout, 3) is None
    assert rollout_status(run_dir, None, 1) is None
    assert rollout_lines(None) == []
