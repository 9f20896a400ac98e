"""Slurm in each kind of lab does what the product needs of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from tests.lab.kit import RunningLab, require, wait_for

pytestmark = pytest.mark.lab

HETEROGENEOUS = """#!/bin/bash
#SBATCH --no-kill --time=5 --output=het.out
#SBATCH --partition=cpu --nodes=1 --ntasks=1 --cpus-per-task=1 --mem=1G
#SBATCH hetjob
#SBATCH --partition=gpu --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 --gres=gpu:4 --mem=2G
srun --het-group=1 --overlap --no-kill --kill-on-bad-exit=0 --wait=0 --mpi=none -N2 -n2 -c1 \\
    bash -c 'echo worker $(hostname) $CUDA_VISIBLE_DEVICES'
srun --het-group=0 --overlap bash -c 'echo head $(hostname)'
"""


def job_states(lab: RunningLab, job: str) -> set[str]:
    return set(lab.on("login", "squeue", "-h", "-t", "all", "-j", job, "-o", "%T").split())


def submit(lab: RunningLab, *arguments: str, text: str = "") -> str:
    return lab.on("login", "sbatch", "--parsable", *arguments, text=text).strip()


def test_every_node_is_idle(any_lab: RunningLab) -> None:
    rows = any_lab.on("login", "sinfo", "-h", "-N", "-o", "%N %P %T %G %f").splitlines()
    assert rows == [
        "c1 cpu* idle (null) cpu,ib,nvme",
        "c2 gpu idle gpu:a100:4 a100,ib,nvme",
        "c3 gpu idle gpu:a100:4 a100,ib,nvme",
    ]


def test_switches_have_two_levels(any_lab: RunningLab) -> None:
    text = any_lab.on("login", "scontrol", "show", "topology")
    assert "SwitchName=leaf1 Level=0" in text
    assert "Nodes=c1,c2" in text
    assert "SwitchName=spine Level=1" in text


def test_heterogeneous_job_runs(any_lab: RunningLab) -> None:
    began = time.monotonic()
    job = submit(any_lab, text=HETEROGENEOUS)
    wait_for("the job is done", lambda: job_states(any_lab, job) == {"COMPLETED"}, 40)
    print(f"heterogeneous job: {time.monotonic() - began:.1f} s")
    lines = any_lab.on("login", "cat", "het.out").splitlines()
    assert {line for line in lines if line.startswith(("worker", "head"))} == {
        "worker c2 0,1,2,3",
        "worker c3 0,1,2,3",
        "head c1",
    }


def test_scancel_ends_a_job(any_lab: RunningLab) -> None:
    job = submit(any_lab, "--partition=gpu", "--wrap=sleep 600")
    wait_for("the job runs", lambda: job_states(any_lab, job) == {"RUNNING"})
    any_lab.on("login", "scancel", job)
    wait_for("the job is cancelled", lambda: job_states(any_lab, job) == {"CANCELLED"})
    sleeps = any_lab.sh("c2", "pgrep -u exa1 -c sleep || true")
    assert sleeps.strip() == "0"


def test_what_a_step_leaves_behind(any_lab: RunningLab) -> None:
    """cgroups end a child that called setsid with its step; process groups do not."""
    step = "setsid sleep 600 >/dev/null 2>&1 & sleep 0.3"
    any_lab.on("login", "srun", "-p", "gpu", "-w", "c2", "-n1", "bash", "-c", step)
    left = int(any_lab.sh("c2", "pgrep -u exa1 -c sleep || true"))
    if any_lab.profile == "real":
        wait_for("it has gone", lambda: any_lab.sh("c2", "pgrep -u exa1 sleep || true") == "")
    else:
        assert left == 1
        any_lab.on("c2", "pkill", "-u", "exa1", "sleep")


def test_cores_of_a_step(any_lab: RunningLab) -> None:
    cores = any_lab.on(
        *("login", "srun", "-p", "gpu", "-w", "c2", "-n1", "-c1"),
        *("python3", "-c", "import os; print(*sorted(os.sched_getaffinity(0)), sep=',')"),
    ).strip()
    known = any_lab.status()["hosts"]["c2"]["cores"]
    if any_lab.profile == "real":
        assert len(cores.split(",")) == 1
        assert int(cores) in known
    else:
        assert cores == ",".join(map(str, known))
        assert len(known) == 1


def test_python_of_the_software_environment(any_lab: RunningLab) -> None:
    """Debian 12's Python, of which the environment is made, runs under either Slurm."""
    script = "import ssl, sqlite3, ctypes, bz2, lzma; print('fine')"
    command = ("srun", "-p", "gpu", "-n1", "python3.11", "-c", script)
    assert any_lab.on("login", *command).strip() == "fine"


def test_slurm_is_of_the_right_version(any_lab: RunningLab) -> None:
    status = any_lab.status()["slurm"]
    assert status["version"].startswith(any_lab.slurm)
    assert any_lab.on("login", "sbatch", "--version").split()[1] == status["version"]
    assert status["trouble"] is None


@pytest.fixture(scope="module", params=["22.05", "24.11"])
def accounted(request: pytest.FixtureRequest) -> Iterator[RunningLab]:
    """A lab with slurmdbd."""
    lab = RunningLab(f"acct{request.param.replace('.', '')}-{os.getpid()}", "wide", request.param)
    require(lab.slurm, accounting=True)
    lab.lab("up", "--nodes=2", f"--slurm={lab.slurm}", "--accounting")
    yield lab
    lab.lab("down")


def test_accounting_knows_finished_jobs(accounted: RunningLab) -> None:
    job = submit(accounted, "--wrap=exit 3")
    fields = ("sacct", "-X", "-n", "-P", "-j", job, "-o", "User,Account,State,ExitCode")
    wait_for(
        "sacct has the job's end",
        lambda: accounted.on("login", *fields).strip() == "exa1|exa|FAILED|3:0",
    )
    assert set(accounted.status()["hosts"]["ctl"]["daemons"]) == {
        *("munged", "bindfs", "mariadbd", "slurmdbd", "slurmctld"),
    }


def test_accounting_survives_the_controller(accounted: RunningLab) -> None:
    job = submit(accounted, "--wrap=true")
    state = ("sacct", "-X", "-n", "-P", "-j", job, "-o", "State")
    wait_for("it is done", lambda: accounted.on("login", *state).strip() == "COMPLETED")
    accounted.lab("kill-node", "ctl")
    accounted.lab("start-node", "ctl")
    assert accounted.on("login", *state).strip() == "COMPLETED"
