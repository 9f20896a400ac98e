"""Killed at any step of a rollout, a supervisor leaves what the next one brings to the same end."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exaslurm.core.plan import CellPlan, Plan
from exaslurm.rollout import manager
from exaslurm.rollout import records as rollout_records
from exaslurm.rollout.records import read_canary
from exaslurm.rollout.start import PolicyOptions, rollback
from exaslurm.submit import records
from exaslurm.supervisor import act, loop
from tests.rollout.conftest import Rolled
from tests.supervisor.test_faults import Killed, Steps

LOOK_S = 20.0
POLICY = PolicyOptions(steps_percent=(30.0, 100.0), hold_s=20.0, min_requests=0)


def good(rolled: Rolled) -> None:
    rolled.begin(options=POLICY)


def slow(rolled: Rolled) -> None:
    rolled.traffic.slower = 3.0
    rolled.begin(options=POLICY)


def taken_back(rolled: Rolled) -> None:
    """By its owner, with one cell moved already."""
    rolled.begin(options=POLICY)
    while rolled.rollout.cells < 2:
        rolled.run(10)
    rollback(rolled.run_dir, environ=rolled.environ, slurm=rolled.cluster)


# What there is in the end: jobs, generation, state.
ENDS = {
    good: (["c000.2", "c001.2"], 2, "done"),
    slow: (["c000", "c001"], 1, "undone"),
    taken_back: (["c000.3", "c001"], 1, "undone"),
}


def live_through(
    rolled: Rolled, die_at: int | None, patch: pytest.MonkeyPatch
) -> tuple[Any, list[str]]:
    """What there is in the end, and the steps to it."""
    steps = Steps(die_at)
    with patch.context() as inner:
        rolled.cluster.hook = steps
        for module, name in (
            (records, "write_atomic"),
            (records, "append_line"),
            (rollout_records, "write_atomic"),
            (act, "write_atomic"),
            (act, "make_private_dir"),
            (act, "remove_record"),
            (loop, "write_atomic"),
        ):
            label = f"{module.__name__.removeprefix('exaslurm.')}.{name}"
            inner.setattr(module, name, steps.around(label, getattr(module, name)))
        over = 0
        for _ in range(60):
            rolled.cluster.advance(LOOK_S, rolled.run_dir)
            try:
                rolled.supervisor.round()
            except Killed:
                rolled.start_supervisor()
            over += rolled.rollout.is_over
            if over > 2:  # what the last round has left is done in the next one
                break
            for cell in ("c000", "c001"):
                assert rolled.cluster.serving(cell), (cell, steps.names[-1])
    rolled.cluster.hook = lambda _: None
    desired = rolled.run_dir.read_desired()
    assert desired is not None
    turns = {name: (item.state, item.generation) for name, item in rolled.turns().items()}
    published = sorted(path.stem for path in rolled.run_dir.registry.glob("[!.]*.json"))
    end = (rolled.live(), desired.generation, rolled.rollout.state)
    return (end, turns, published, read_canary(rolled.run_dir)), steps.names


def script(_plan: Plan, cell: CellPlan, *_: object) -> str:
    """In place of the rendered one, which is not what this is about and takes its time."""
    return f"#SBATCH --time=00:10:00\nrun --cell {cell.name}\n"


@pytest.mark.parametrize("event", ENDS)
def test_killed_at_every_step(
    tmp_path: Path, event: Callable[[Rolled], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # nothing here loses power

    monkeypatch.setattr(act, "render_script", script)
    (tmp_path / "begun").mkdir()
    begun = Rolled(tmp_path / "begun")
    begun.run(100)
    event(begun)
    expected, steps = live_through(begun.copy_to(tmp_path / "whole"), None, monkeypatch)
    assert expected[0] == ENDS[event]
    assert expected[0][0] == expected[2]
    kinds = {name.partition(" ")[2] for name in steps}
    assert {"rollout.records.write_atomic", "submit.records.append_line", "drain"} <= kinds
    # After a step is as before the next one: nothing but memory lies between. Most of the steps on
    # the ways back are those of the way there.
    for number in range(0, len(steps), 2 if event is good else 6):
        rolled = begun.copy_to(tmp_path / str(number))
        end, _ = live_through(rolled, number, monkeypatch)
        step = steps[number]
        assert end == expected, f"killed {step} (step {number})"
        once = Counter(job.turn for job in rolled.cluster.book.values())
        assert set(once.values()) == {1}, f"killed {step}: a job twice"


def test_the_manager_writes_with_what_is_patched_above() -> None:
    assert manager.records is rollout_records
    assert manager.add_history is records.add_history
    assert manager.write_desired is records.write_desired
