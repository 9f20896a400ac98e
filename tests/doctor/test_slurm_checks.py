"""What Slurm's own words are taken to mean."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from exaslurm.doctor import slurm_checks as checks
from exaslurm.slurm.client import Slurm

CONFIG = """\
Configuration data as of 2026-11-29T20:00:00
AccountingStorageType   = accounting_storage/none
MinJobAge               = 300 sec
SchedulerParameters     = bf_interval=1,sched_interval=2
SchedulerType           = sched/backfill
SLURM_VERSION           = 22.05.8

Cgroup Support Configuration:
"""


@pytest.fixture
def slurm(tmp_path: Path) -> Callable[..., Slurm]:
    """A Slurm whose commands print what the real ones printed once."""

    def make(**answers: str) -> Slurm:
        for name, body in answers.items():
            path = tmp_path / name
            path.write_text(f"#!/bin/sh\n{body}\n")
            path.chmod(0o755)
        return Slurm({"PATH": f"{tmp_path}:{os.environ['PATH']}"})

    return make


def test_config_is_read_as_it_is_printed() -> None:
    found = checks.parse_config(CONFIG)
    assert found["SchedulerType"] == "sched/backfill"
    assert found["SchedulerParameters"] == "bf_interval=1,sched_interval=2"
    assert "Cgroup Support Configuration:" not in found


@pytest.mark.parametrize(
    ("changes", "wanted", "outcome", "says"),
    [
        ({}, True, "warn", "bf_hetjob_immediate"),
        ({"SchedulerParameters": "bf_hetjob_immediate"}, True, "pass", "is set"),
        ({"SchedulerParameters": "disable_hetjob_steps"}, True, "pass", "not needed"),
        ({"SchedulerType": "sched/builtin"}, True, "fail", "sched/builtin"),
        ({}, False, "skip", "turns them off"),
    ],
)
def test_heterogeneous_jobs(changes: dict[str, str], wanted: bool, outcome: str, says: str) -> None:
    found = checks.check_hetjobs({**checks.parse_config(CONFIG), **changes}, wanted=wanted)
    assert found.outcome == outcome
    assert says in found.value
    assert (found.remedy is None) == (outcome in ("pass", "skip"))


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({}, "pass"),
        ({"MinJobAge": "30 sec"}, "warn"),
        (
            {"MinJobAge": "30 sec", "AccountingStorageType": "accounting_storage/slurmdbd"},
            "pass",
        ),
        ({"MinJobAge": ""}, "skip"),
    ],
)
def test_how_long_ended_jobs_are_known(changes: dict[str, str], outcome: str) -> None:
    found = checks.check_job_age({**checks.parse_config(CONFIG), **changes})
    assert found.outcome == outcome


@pytest.mark.parametrize(
    ("version", "outcome"),
    [("slurm-wlm 22.05.8", "pass"), ("slurm 24.11.5", "pass"), ("slurm 21.08.8-2", "warn"),
     ("slurm 19.05.3", "fail"), ("slurm unknown", "warn")],
)  # fmt: skip
def test_versions(slurm: Callable[..., Slurm], version: str, outcome: str) -> None:
    assert checks.check_version(slurm(sbatch=f"echo '{version}'")).outcome == outcome


def test_a_controller_that_is_up(slurm: Callable[..., Slurm]) -> None:
    found = checks.check_controller(slurm(scontrol="echo 'Slurmctld(primary) at ctl is UP'"))
    assert (found.outcome, found.value) == ("pass", "Slurmctld(primary) at ctl is UP")


def test_a_controller_that_is_down(slurm: Callable[..., Slurm]) -> None:
    found = checks.check_controller(slurm(scontrol="echo 'Slurmctld(primary) at ctl is DOWN'"))
    assert found.outcome == "fail"
    assert found.remedy


def test_partitions(slurm: Callable[..., Slurm]) -> None:
    body = (
        'case "$3" in '
        "gpu) echo 'PartitionName=gpu State=UP TotalNodes=3 MaxTime=1-00:00:00 DefaultTime=NONE';; "
        "old) echo 'PartitionName=old State=DOWN TotalNodes=1 MaxTime=UNLIMITED';; "
        "*) echo 'slurm_load_partitions error: Invalid partition name specified' >&2; exit 1;; esac"
    )
    found = list(checks.check_partitions(slurm(scontrol=body), ["gpu", "old", "nosuch"]))
    assert [check.outcome for check in found] == ["pass", "warn", "fail"]
    assert "3 nodes, at most 1-00:00:00" in found[0].value
    assert "Invalid partition name" in found[2].value


def test_commands(tmp_path: Path) -> None:
    assert checks.check_commands(str(tmp_path)).outcome == "fail"
    for name in checks.NEEDED:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    assert checks.check_commands(str(tmp_path)).outcome == "warn"  # sacct is missing
    (tmp_path / "sacct").write_text("#!/bin/sh\n")
    (tmp_path / "sacct").chmod(0o755)
    assert checks.check_commands(str(tmp_path)).outcome == "pass"
