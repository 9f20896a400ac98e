from __future__ import annotations

import calendar

import pytest

from exaslurm.errors import QueryFailed
from exaslurm.slurm import parse
from exaslurm.slurm.types import JobId
from exaslurm.util.hostlist import expand


@pytest.mark.parametrize(
    ("stdout", "ident"),
    [
        ("1234\n", JobId("1234")),
        ("1234;alpha\n", JobId("1234", "alpha")),
        ("lua: your job was moved to partition gpu 17\n99\n", JobId("99")),
        ("sbatch: note about job 12\n77;beta-2\n", JobId("77", "beta-2")),
        ("", None),
        ("Submitted batch job twelve\n", None),
        ("12x\n", None),
        ("12;\n", None),
        ("1234\nhave a nice day\n", None),
    ],
)
def test_job_id(stdout: str, ident: JobId | None) -> None:
    assert parse.job_id(stdout) == ident


def test_components_are_grouped_under_their_leader() -> None:
    jobs = parse.squeue_jobs(
        "12|plain|PENDING||N/A|N/A|Priority\n"
        "93+1|exa-a-c000-ff|RUNNING|c[3-4]|2026-11-29T20:35:45|2026-11-29T20:40:45|None\n"
        "93+0|exa-a-c000-ff|RUNNING|c1|2026-11-29T20:35:45|2026-11-29T20:40:45|None\n",
        expand,
    )
    assert list(jobs) == ["12", "93"]
    job = jobs["93"]
    assert (job.name, job.state, job.reason) == ("exa-a-c000-ff", "RUNNING", "")
    assert job.nodes == ("c1", "c3", "c4")
    assert [part.id for part in job.components] == ["93+0", "93+1"]
    assert job.start_s == calendar.timegm((2026, 11, 29, 20, 35, 45))
    assert jobs["12"].is_pending
    assert jobs["12"].start_s is None
    assert jobs["12"].nodes == ()


def test_the_reason_may_hold_anything() -> None:
    reason = "ReqNodeNotAvail, UnavailableNodes:c[1-2]|odd"
    jobs = parse.squeue_jobs(f"7|x|PENDING||N/A|N/A|{reason}\n", expand)
    assert jobs["7"].reason == reason


@pytest.mark.parametrize(
    ("states", "combined"),
    [
        (["RUNNING", "COMPLETED"], "RUNNING"),
        (["COMPLETING", "COMPLETED"], "COMPLETING"),
        (["PENDING", "PENDING"], "PENDING"),
        (["COMPLETED", "COMPLETED"], "COMPLETED"),
        (["COMPLETED", "NODE_FAIL"], "NODE_FAIL"),
        (["CANCELLED", "COMPLETED"], "CANCELLED"),
    ],
)
def test_state_of_several_components(states: list[str], combined: str) -> None:
    lines = [f"5+{n}|x|{state}||N/A|N/A|None" for n, state in enumerate(states)]
    assert parse.squeue_jobs("\n".join(lines), expand)["5"].state == combined


def test_a_reason_of_any_component_is_kept() -> None:
    jobs = parse.squeue_jobs(
        "5+0|x|PENDING||N/A|N/A|None\n5+1|x|PENDING||N/A|N/A|BadConstraints\n", expand
    )
    assert jobs["5"].reason == "BadConstraints"


def test_lines_about_the_cluster_and_array_tasks_are_skipped() -> None:
    jobs = parse.squeue_jobs("CLUSTER: alpha\n5_1|x|RUNNING|c1|N/A|N/A|None\n", expand)
    assert jobs == {}


def test_sacct() -> None:
    jobs = parse.sacct_jobs(
        "93+0|n|CANCELLED by 6001|c1|2026-11-29T20:35:45|2026-11-29T20:36:00|0:15\n"
        "93+1|n|CANCELLED by 6001|None assigned|Unknown|Unknown|0:0\n"
        "94|n|FAILED|c2|2026-11-29T20:35:45|2026-11-29T20:36:00|3:0\n",
        expand,
    )
    assert jobs["93"].state == "CANCELLED"
    assert jobs["93"].is_finished
    assert jobs["93"].exit_code == 128 + 15
    assert jobs["93"].nodes == ("c1",)
    assert jobs["94"].exit_code == 3


def test_what_is_not_understood_is_quoted() -> None:
    with pytest.raises(QueryFailed, match="'slurm went mad'"):
        parse.squeue_jobs("slurm went mad\n", expand)
    with pytest.raises(QueryFailed, match=r"c\[1-"):
        parse.squeue_jobs("7|x|RUNNING|c[1-|N/A|N/A|None\n", expand)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800.0),
        ("30:15", 1815.0),
        ("01:00:00", 3600.0),
        ("1-00", 86400.0),
        ("2-12:30", 217800.0),
        ("1-00:00:30", 86430.0),
        ("UNLIMITED", None),
        ("Partition_Limit", None),
        ("NOT_SET", None),
        ("INVALID", None),
        ("", None),
    ],
)
def test_durations(text: str, seconds: float | None) -> None:
    assert parse.duration_s(text) == seconds


def test_time_limits() -> None:
    found = parse.time_limits("93+0|1:00:00\n93+1|UNLIMITED\n")
    assert found == {"93+0": 3600.0, "93+1": None}


def test_times_are_those_of_the_commands() -> None:
    assert parse.unix_time("1970-01-02T00:00:01") == 86401.0
    assert parse.time_text(86401.9) == "1970-01-02T00:00:01"
    assert parse.unix_time("NONE") is None


@pytest.mark.parametrize(("state", "end"), [("RUNNING", 30), ("COMPLETED", 40)])
def test_components_with_limits_of_their_own(state: str, end: int) -> None:
    jobs = parse.squeue_jobs(
        f"93+1|x|{state}|c2|2026-11-29T20:35:45|2026-11-29T20:40:40|None\n"
        f"93+0|x|{state}|c1|2026-11-29T20:35:45|2026-11-29T20:40:30|None\n"
        f"93+2|x|{state}|c3|2026-11-29T20:35:45|NONE|None\n",
        expand,
    )
    assert jobs["93"].end_s == calendar.timegm((2026, 11, 29, 20, 40, end))


def test_several_clusters_are_told_apart() -> None:
    when = "2026-11-29T20:35:45|2026-11-29T20:40:45|None"
    jobs = parse.squeue_jobs(
        f"CLUSTER: alpha\n7|x|RUNNING|c1|{when}\n\nCLUSTER: beta\n8|y|RUNNING|d1|{when}\n", expand
    )
    assert {ident: job.cluster for ident, job in jobs.items()} == {"7": "alpha", "8": "beta"}
    assert parse.squeue_jobs(f"7|x|RUNNING|c1|{when}\n", expand)["7"].cluster is None
