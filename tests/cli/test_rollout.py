"""The verbs; what they set in motion is tested in tests/rollout."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exaslurm.cli.verbs.rollout import StepsType
from exaslurm.core.rollout import Rollout
from exaslurm.errors import NotReadyError, WaitTimeout
from exaslurm.rollout.records import write_rollout
from exaslurm.rollout.wait import wait_over
from exaslurm.rundir import RunDir
from tests.rollout.conftest import NEW_SPEC, Rolled

Run = Callable[..., Any]


@pytest.fixture
def begun(exaslurm: Run, tmp_path: Path) -> Rolled:
    """Under way, in the state directory that the command line uses."""
    rolled = Rolled(tmp_path)
    rolled.run(100)
    rolled.begin()
    return rolled


def test_rollback_takes_it_back(exaslurm: Run, begun: Rolled) -> None:
    done = exaslurm("rollback", "hello", "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert (told["schema"], told["state"], told["deployment"]) == (
        "exaslurm/rollout/1",
        "undoing",
        "hello",
    )
    assert begun.rollout.state == "undoing"
    history = exaslurm("history", "hello").out.splitlines()
    assert [line.split()[3] for line in history[-2:]] == ["rollout", "rollback"]
    entries = json.loads(exaslurm("history", "hello", "--json", "--last", 1).out)["entries"]
    assert [(entry["verb"], entry["generation"]) for entry in entries] == [("rollback", 2)]


def test_what_is_under_way_is_not_begun_again(exaslurm: Run, begun: Rolled) -> None:
    path = begun.directory / "again.yaml"
    path.write_text(NEW_SPEC.replace("blue", "red"))
    done = exaslurm("rollout", path)
    assert done.code == 2
    assert "is going over from generation 1 to 2 already" in done.err
    assert "exaslurm rollback hello" in done.err


def test_without_slurm_there_is_no_place_for_two(exaslurm: Run, begun: Rolled) -> None:
    begun.run_dir.rollout.unlink()
    path = begun.directory / "local.yaml"
    spec = NEW_SPEC.replace("site: lab", "site: local").replace("time_limit: 00:10:00\n", "")
    path.write_text(spec.replace("workers: {nodes: 2, nodes_per_cell: 1}\n", ""))
    done = exaslurm("rollout", path)
    assert done.code == 2
    assert "runs without Slurm" in done.err


def test_no_such_deployment(exaslurm: Run, tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(NEW_SPEC)
    done = exaslurm("rollout", path)
    assert done.code == 2
    assert "no deployment 'hello'" in done.err


@pytest.mark.parametrize("steps", ["", "5,25", "50,25,100", "0,100", "5,5,100", "x", "-1,100"])
def test_steps_that_lead_nowhere(exaslurm: Run, tmp_path: Path, steps: str) -> None:
    done = exaslurm("rollout", tmp_path / "spec.yaml", "--steps", steps)
    assert done.code == 2
    assert "--steps" in done.err


def test_steps() -> None:
    assert StepsType().convert("5%, 25,100", None, None) == (5.0, 25.0, 100.0)


class Clock:
    """Time that passes by waiting."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def read(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_waiting(tmp_path: Path) -> None:
    run_dir, clock, said = RunDir(tmp_path), Clock(), list[str]()
    rollout = Rollout(stable=1, candidate=2, state="rising")

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.now_s == 3.0:
            write_rollout(run_dir, replace(rollout, state="undone", reason="it is slow"))

    write_rollout(run_dir, rollout)
    found = wait_over(run_dir, 2, timeout_s=60, talk=said.append, clock=clock.read, sleep=sleep)
    assert found.state == "undone"
    assert said[-1] == "generation 1 -> 2: taken back: it is slow"
    assert len(said) == 2
    write_rollout(run_dir, rollout)
    with pytest.raises(WaitTimeout, match="not over after 5 s"):
        wait_over(run_dir, 2, timeout_s=5, clock=clock.read, sleep=clock.sleep)
    with pytest.raises(NotReadyError):
        wait_over(run_dir, 3, timeout_s=5, clock=clock.read, sleep=clock.sleep)
