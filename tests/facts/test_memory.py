"""Usable memory: the least of machine, grant and cgroups of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from exaslurm.facts.memory import memory_figures, oom_kills, tightest, usable_mib
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


# -- how much is used


def test_of_a_machine_without_limits(proc: Path, tmp_path: Path) -> None:
    fill(proc, {"meminfo": "MemTotal: 1024000 kB\nMemFree: 10 kB\nMemAvailable: 204800 kB\n",
                "pressure/memory": "some avg10=3.25 avg60=1.00 avg300=0.00 total=9\n"
                "full avg10=1.00 avg60=0.00 avg300=0.00 total=1\n"})  # fmt: skip
    found = memory_figures(proc=proc, cgroup=tmp_path / "none")
    assert (found.used_mib, found.limit_mib, found.free_mib) == (800, 1000, 200)
    assert (found.bound, found.stalled_pct) == ("node", 3.25)


def test_cgroup_v2_without_page_cache_that_can_go(proc: Path, tmp_path: Path) -> None:
    job = "system.slice/slurmstepd.scope/job_7"
    cgroup = fill(
        tmp_path / "cgroup",
        {
            f"{STEP}/memory.max": "max\n",
            f"{STEP}/memory.current": f"{1900 << 20}\n",
            f"{job}/memory.max": f"{2048 << 20}\n",
            f"{job}/memory.current": f"{2000 << 20}\n",
            f"{job}/memory.stat": f"anon 5\ninactive_file {500 << 20}\nactive_file 7\n",
            f"{job}/memory.pressure": "some avg10=12.50 avg60=0.00 avg300=0.00 total=0\n",
        },
    )
    found = memory_figures(proc=proc, cgroup=cgroup)
    assert (found.used_mib, found.limit_mib) == (1500, 2048)
    assert (found.bound, found.stalled_pct) == (f"/{job}", 12.5)


def test_cgroup_v1_counts_what_is_below(proc: Path, tmp_path: Path) -> None:
    fill(proc, {"self/cgroup": "4:memory:/slurm/uid_1/job_7/step_0\n0::/\n"})
    cgroup = fill(
        tmp_path / "cgroup",
        {
            "memory/slurm/uid_1/job_7/step_0/memory.limit_in_bytes": "9223372036854771712\n",
            "memory/slurm/uid_1/job_7/memory.limit_in_bytes": f"{1024 << 20}\n",
            "memory/slurm/uid_1/job_7/memory.usage_in_bytes": f"{1000 << 20}\n",
            "memory/slurm/uid_1/job_7/memory.stat": "inactive_file 0\n"
            f"total_inactive_file {100 << 20}\n",
        },
    )
    found = memory_figures(proc=proc, cgroup=cgroup)
    assert (found.used_mib, found.limit_mib, found.bound) == (900, 1024, "/slurm/uid_1/job_7")
    limit = tightest(proc=proc, cgroup=cgroup)
    assert limit is not None
    assert (limit.limit_bytes, limit.cgroup) == (1024 << 20, "/slurm/uid_1/job_7")


def test_a_limit_above_the_machine_is_none(proc: Path, tmp_path: Path) -> None:
    cgroup = fill(tmp_path / "cgroup", {f"{STEP}/memory.max": f"{1 << 50}\n",
                                        f"{STEP}/memory.current": "1\n"})  # fmt: skip
    assert tightest(proc=proc, cgroup=cgroup) is None
    assert memory_figures(proc=proc, cgroup=cgroup).bound == "node"
