from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from exaslurm.errors import (
    CommandNotFound,
    ExitCode,
    QueryFailed,
    SubmitAmbiguous,
    SubmitRejected,
)
from exaslurm.slurm.client import Slurm
from exaslurm.slurm.types import JobId
from tests.slurm.conftest import FakeSlurm

JobLine = Callable[..., str]

TIMED_OUT = (
    "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' "
    ">&2; exit 1"
)


def refused(why: str) -> str:
    return f"echo 'sbatch: error: Batch job submission failed: {why}' >&2; exit 1"


# --- submitting -------------------------------------------------------------------------------


def test_submit(fake: FakeSlurm, script: Path) -> None:
    fake.command("sbatch", "echo 'lua: hello'; echo '41;alpha'")
    slurm = fake.client()
    assert slurm.submit(script, job_name="exa-x", extra=["--comment=a b"]) == JobId("41", "alpha")
    assert fake.calls("sbatch") == [f"sbatch --parsable --job-name=exa-x --comment=a b {script}"]
    assert slurm.calls == {"sbatch": 1}


def test_submit_lost_answer_is_found_by_name(
    fake: FakeSlurm, script: Path, job_line: JobLine
) -> None:
    fake.command("sbatch", TIMED_OUT)
    # The controller is slow: the job is not there at the first look.
    fake.command("squeue", f"[ $calls -ge 1 ] && echo '{job_line()}'; exit 0")
    fake.command("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    slurm = fake.client(look_up_s=5)
    assert slurm.submit(script, job_name="exa-x") == JobId("41")
    assert len(fake.calls("sbatch")) == 1
    assert all(f"--user={os.getuid()} --name=exa-x" in call for call in fake.calls("squeue"))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(TIMED_OUT, id="timed out"),
        pytest.param("exit 0", id="no id"),
        pytest.param("echo fine", id="no number"),
        pytest.param("kill -9 $$", id="killed"),
        pytest.param("exec sleep 30", id="hangs"),
        pytest.param(refused("Zero Bytes were transmitted or received"), id="cut off"),
    ],
)
def test_submit_unclear_and_not_found(fake: FakeSlurm, script: Path, body: str) -> None:
    fake.command("sbatch", body)
    fake.command("squeue", "exit 0")
    fake.command("sacct", "exit 0")
    with pytest.raises(SubmitAmbiguous, match="exa-x") as caught:
        fake.client(submit_timeout_s=1).submit(script, job_name="exa-x")
    assert caught.value.exit_code == ExitCode.AMBIGUOUS
    assert "never submits it twice" in str(caught.value.remedy)
    assert len(fake.calls("sbatch")) == 1


def test_submit_unclear_under_a_name_that_others_have(fake: FakeSlurm, script: Path) -> None:
    """Looking it up would find another job."""
    fake.command("sbatch", TIMED_OUT)
    fake.command("squeue", "echo '41|exa-x|RUNNING|c1|N/A|N/A|None'")
    with pytest.raises(SubmitAmbiguous, match="not known whether Slurm took job exa-x"):
        fake.client().submit(script, job_name="exa-x", one_of_many=True)
    assert fake.calls("squeue") == []


def test_jobs_by_the_beginning_of_their_names(fake: FakeSlurm, job_line: JobLine) -> None:
    lines = [
        job_line("41", "exa-x-c000-1", "RUNNING"),
        job_line("42", "exa-y-c000-1", "PENDING"),
        job_line("43", "exa-x-c001-1", "COMPLETED"),
        job_line("44", "exa-x-gateway-1", "PENDING"),
    ]
    fake.command("squeue", "printf '%s\\n' " + " ".join(f"'{line}'" for line in lines))
    assert [job.id for job in fake.client().named("exa-x-")] == ["41", "44"]
    assert len(fake.calls("squeue")) == 1


def test_submit_unclear_and_nobody_to_ask(fake: FakeSlurm, script: Path) -> None:
    fake.command("sbatch", TIMED_OUT)
    fake.command(
        "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1"
    )
    with pytest.raises(SubmitAmbiguous, match=r"Socket timed out.*squeue failed"):
        fake.client().submit(script, job_name="exa-x")


@pytest.mark.parametrize(
    ("why", "remedy"),
    [
        ("Invalid partition name specified", "sinfo -s"),
        ("Invalid account or account/partition combination specified", "'account'"),
        ("Invalid qos specification", "'qos'"),
        (
            "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
            "limit of your account",
        ),
        ("Requested time limit is invalid (missing or exceeds some limit)", "time_limit"),
        ("Requested node configuration is not available", "exaslurm render"),
        ("Memory specification can not be satisfied", "mem_gib"),
        ("Invalid generic resource (gres) specification", "gres"),
        ("Invalid feature specification", "sinfo -o %f"),
        ("Node count specification invalid", "workers.nodes"),
        ("Something nobody has heard of", "--test-only"),
    ],
)
def test_submit_refused(fake: FakeSlurm, script: Path, why: str, remedy: str) -> None:
    body = why.replace("'", "'\\''")
    fake.command("sbatch", refused(body))
    with pytest.raises(SubmitRejected) as caught:
        fake.client().submit(script, job_name="exa-x")
    assert why in str(caught.value)
    assert remedy in str(caught.value.remedy)
    assert not caught.value.transient
    assert caught.value.exit_code == ExitCode.SLURM_REFUSED
    assert fake.calls("squeue") == []


def test_submit_controller_down(fake: FakeSlurm, script: Path) -> None:
    fake.command("sbatch", refused("Unable to contact slurm controller (connect failure)"))
    with pytest.raises(SubmitRejected, match="cannot be reached") as caught:
        fake.client().submit(script, job_name="exa-x")
    assert caught.value.transient
    assert fake.calls("squeue") == []


def test_submit_several_of_one_name(fake: FakeSlurm, script: Path, job_line: JobLine) -> None:
    fake.command("sbatch", TIMED_OUT)
    fake.command("squeue", f"echo '{job_line('41')}'; echo '{job_line('42')}'")
    with pytest.raises(SubmitAmbiguous, match="41, 42"):
        fake.client().submit(script, job_name="exa-x")


def test_no_slurm_here(script: Path, tmp_path: Path) -> None:
    slurm = Slurm({"PATH": str(tmp_path)})
    with pytest.raises(CommandNotFound, match="'sbatch'") as caught:
        slurm.submit(script, job_name="exa-x")
    assert "login node" in str(caught.value.remedy)
    with pytest.raises(CommandNotFound, match="'squeue'"):
        slurm.jobs(["1"])


# --- asking -----------------------------------------------------------------------------------


def test_jobs_asks_once(fake: FakeSlurm, job_line: JobLine) -> None:
    fake.command("squeue", f"echo '{job_line('41+0')}'; echo '{job_line('41+1')}'; exit 0")
    fake.command("sacct", "exit 0")
    jobs = fake.client().jobs(["41"])
    assert jobs["41"].is_running
    assert len(fake.calls("squeue")) == 1
    assert fake.calls("sacct") == []


def test_jobs_of_nothing_asks_nothing(fake: FakeSlurm) -> None:
    assert fake.client().jobs([]) == {}


def test_jobs_that_left_the_queue(fake: FakeSlurm, job_line: JobLine) -> None:
    fake.command("squeue", f"echo '{job_line('41')}'")
    when = "2026-11-29T20:35:45|2026-11-29T20:36:00"
    fake.command(
        "sacct", f"echo '42|exa-y|FAILED|c1|{when}|2:0'; echo '43|exa-z|RUNNING|c1|{when}|0:0'"
    )
    jobs = fake.client().jobs(["41", "42", "43", "44"])
    assert [job.state for job in jobs.values()] == ["RUNNING", "FAILED", "GONE", "GONE"]
    assert jobs["42"].exit_code == 2
    assert "--jobs=42,43,44" in fake.calls("sacct")[0]


def test_jobs_of_several_clusters(fake: FakeSlurm, job_line: JobLine) -> None:
    fake.command("squeue", f"echo 'CLUSTER: some'; echo '{job_line('41')}'")
    fake.command("sacct", "exit 0")
    jobs = fake.client().jobs(["41", "41;alpha", "42;beta"])
    states = {ident: job.state for ident, job in jobs.items()}
    assert states == {"41": "RUNNING", "41;alpha": "RUNNING", "42;beta": "GONE"}
    assert [word for call in fake.calls("squeue") for word in call.split() if "=4" in word] == [
        "--jobs=41",
        "--jobs=41",
        "--jobs=42",
    ]
    assert "--clusters" not in fake.calls("squeue")[0]
    assert "--clusters=alpha" in fake.calls("squeue")[1]
    assert "--clusters=beta" in fake.calls("sacct")[0]


def test_jobs_without_accounting(fake: FakeSlurm) -> None:
    fake.command("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    fake.command("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    slurm = fake.client()
    for _ in range(3):
        assert slurm.jobs(["41"])["41"].state == "GONE"
    assert len(fake.calls("sacct")) == 1


def test_a_silent_controller_is_not_an_ended_job(fake: FakeSlurm) -> None:
    fake.command(
        "squeue",
        "echo 'slurm_load_jobs error: Socket timed out on send/recv operation' >&2; exit 1",
    )
    with pytest.raises(QueryFailed, match="Socket timed out") as caught:
        fake.client().jobs(["41"])
    assert caught.value.transient
    assert len(fake.calls("squeue")) == 2


def test_a_busy_controller_is_asked_again(fake: FakeSlurm, job_line: JobLine) -> None:
    fake.command(
        "squeue",
        "[ $calls = 0 ] && { echo 'squeue: error: Socket timed out' >&2; exit 1; }\n"
        f"echo '{job_line('41')}'",
    )
    assert fake.client().jobs(["41"])["41"].is_running


def test_a_hanging_command_is_ended(fake: FakeSlurm) -> None:
    fake.command("squeue", "exec sleep 30")
    with pytest.raises(QueryFailed, match=r"no answer in 0\.2 s"):
        fake.client(timeout_s=0.2).jobs(["41"])


# --- cancelling -------------------------------------------------------------------------------


def test_cancel(fake: FakeSlurm) -> None:
    fake.command("scancel", "exit 0")
    slurm = fake.client()
    slurm.cancel("41")
    slurm.cancel(JobId("41", "alpha"), "USR1", batch=True)
    assert fake.calls("scancel") == [
        "scancel 41",
        "scancel --clusters=alpha --signal=USR1 --batch 41",
    ]


def test_cancel_what_has_ended(fake: FakeSlurm) -> None:
    error = "scancel: error: Kill job error on job id 41: Invalid job id specified"
    fake.command("scancel", f"echo '{error}' >&2; exit 1")
    fake.client().cancel("41")


def test_cancel_fails(fake: FakeSlurm) -> None:
    error = "scancel: error: Kill job error on job id 41: Access/permission denied"
    fake.command("scancel", f"echo '{error}' >&2; exit 1")
    with pytest.raises(QueryFailed, match="permission denied") as caught:
        fake.client().cancel("41")
    assert not caught.value.transient


# --- asking without submitting ----------------------------------------------------------------


def test_test_only(fake: FakeSlurm, script: Path) -> None:
    words = "sbatch: Job 3 to start at 2026-11-29T20:40:45 using 10 processors on c[1,3-4]"
    fake.command("sbatch", f"echo '{words}' >&2")
    assert fake.client().test_only(script) == words.removeprefix("sbatch: ")


def test_test_only_refused(fake: FakeSlurm, script: Path) -> None:
    fake.command(
        "sbatch", "echo 'allocation failure: Invalid partition name specified' >&2; exit 1"
    )
    with pytest.raises(SubmitRejected, match=r"would refuse c000\.sbatch"):
        fake.client().test_only(script)
