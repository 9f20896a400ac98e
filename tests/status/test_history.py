from __future__ import annotations

from pathlib import Path

from exaslurm.cli.history_text import history_text
from exaslurm.rundir import RunDir
from exaslurm.status.history import read_history
from exaslurm.submit.records import add_history


def test_there_is_none(tmp_path: Path) -> None:
    assert read_history(RunDir(tmp_path)) == ()


def test_who_what_and_what_came_of_it(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    add_history(run_dir, "submit", generation=1, plan_hash="a" * 64)
    by = {"by": "supervisor 7 on gw", "share": "25 %", "reason": "it is slow"}
    add_history(run_dir, "rollout stopped", generation=2, plan_hash="b" * 64, extra=by)
    with run_dir.history.open("a") as file:
        file.write('{"time_s": 1, "user"\n[]\n')  # half written at a crash
    first, second = read_history(run_dir)
    assert (first.verb, first.generation, first.by, first.details) == ("submit", 1, None, {})
    assert second.by == "supervisor 7 on gw"
    assert second.reason == "it is slow; share 25 %" or second.reason == "share 25 %; it is slow"
    lines = history_text((first, second)).splitlines()
    assert lines[0].split() == ["TIME", "WHO", "WHAT", "GEN", "PLAN", "OUTCOME"]
    assert "(supervisor)" in lines[2]
    assert "bbbbbbbb" in lines[2]
