"""Usable memory: the least of machine, grant and cgroups of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from exaslurm.facts.memory import oom_kills, usable_mib
from tests.facts.conftest import fill

STEP = "system.slice/slurmstepd.scope/job_7/step_0/user/task_0"


def test_the_machine(proc: Path, tmp_path: Path) -> None:
    assert usable_mib({}, proc=proc, cgroup=tmp_path / "none") == 256000


@pytest.mark.parametrize(("granted", "mib"), [("4096", 4096), ("0", 256000), ("", 256000)])
def test_the_grant(proc: Path, tmp_path: Path, granted: str, mib: int) -> None:
    environ = {"SLURM_MEM_PER_NODE": granted}
    assert usable_mib(environ, proc=proc, cgroup=tmp_path / "none") == mib


def test_cgroup_v2_counts_all_levels(proc: Path, tmp_path: Path) -> None:
    cgroup = fill(
        tmp_path / "cgroup",
        {
            f"{STEP}/memory.max": "max\n",
            f"{STEP}/memory.events": "low 0\noom 3\noom_kill 2\noom_group_kill 0\n",
            "system.slice/slurmstepd.scope/job_7/memory.max": f"{2048 << 20}\n",
        },
    )
    assert usable_mib({"SLURM_MEM_PER_NODE": "4096"}, proc=proc, cgroup=cgroup) == 2048
    assert oom_kills(proc=proc, cgroup=cgroup) == 2


def test_cgroup_v1(proc: Path, tmp_path: Path) -> None:
    fill(proc, {"self/cgroup": "9:cpuset:/slurm/x\n4:memory:/slurm/uid_1/job_7/step_0\n0::/\n"})
    cgroup = fill(
        tmp_path / "cgroup",
        {
            "memory/slurm/uid_1/job_7/step_0/memory.limit_in_bytes": "9223372036854771712\n",
            "memory/slurm/uid_1/job_7/memory.limit_in_bytes": f"{1024 << 20}\n",
            "memory/slurm/uid_1/job_7/step_0/memory.oom_control": "oom_kill_disable 0\noom_kill 1",
        },
    )
    assert usable_mib({}, proc=proc, cgroup=cgroup) == 1024
    assert oom_kills(proc=proc, cgroup=cgroup) == 1


def test_nothing_counts_kills(proc: Path, tmp_path: Path) -> None:
    assert oom_kills(proc=proc, cgroup=tmp_path) is None
