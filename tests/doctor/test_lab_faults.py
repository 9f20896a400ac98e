"""Doctor finds each fault that is planted in a running lab, and nothing else."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.kit import RunningLab, require
from tests.slurm.conftest import NODE_PYTHON, ProductLab

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from acceptance.lab import Lab  # noqa: E402
from acceptance.placement.faults import (  # noqa: E402
    FAULTS,
    NODES,
    Checks,
    by_name,
    doctor,
    planted,
    verdict,
)

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]
TREE = ProductLab.pythonpath()


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    require("22.05")
    if not NODE_PYTHON.is_file():
        pytest.skip(f"no {NODE_PYTHON}: scripts/env")
    running = RunningLab(f"d{os.getpid()}")
    try:
        running.up(NODES + 1)
        yield Lab(running.name, str(NODE_PYTHON.parents[1]))
    finally:
        running.run("down")


@pytest.fixture(scope="module")
def sound(lab: Lab) -> Checks:
    """What doctor says before anything is broken."""
    code, found = doctor(lab, None, tree=TREE)
    failed = [c for checks in found.values() for c in checks if c["outcome"] == "fail"]
    assert (code, failed) == (0, [])
    assert set(found) == {"login", "c2", "c3", "c4", "c5"}
    return found


@pytest.mark.parametrize("name", [fault.name for fault in FAULTS])
def test_a_fault_is_found_by_its_check_alone(lab: Lab, sound: Checks, name: str) -> None:
    fault = by_name(name)
    with planted(lab, fault):
        code, found = doctor(lab, fault, tree=TREE)
    assert verdict(fault, code, found, sound) == []


def test_nodes_of_a_running_job_are_looked_at(lab: Lab, sound: Checks) -> None:
    """Of one with components too, beside what runs there."""
    script = "#!/bin/sh\n#SBATCH -p cpu -N1\n#SBATCH hetjob\n#SBATCH -p gpu -N2\nsleep 300\n"
    job = lab.on("login", "sbatch", "--parsable", text=script).stdout.strip()
    try:
        python = f"{lab.env}/bin/python"
        words = (python, "-m", "exaslurm", "doctor", "--site", "lab", "--json", "--job", job)
        import json

        from acceptance.lab import until

        assert until(lambda: "RUNNING" in lab.on("login", "squeue", "-hj", job, "-o%T").stdout, 30)
        done = lab.on("login", *words, variables={"PYTHONPATH": TREE}, timeout_s=200)
        report = json.loads(done.stdout)
        login, head, *workers = [host["host"] for host in report["hosts"]]
        assert (login, head, len(workers)) == ("login", "c1", 2)
        assert report["failed"] == 0, [
            (host["host"], check) for host in report["hosts"]
            for check in host["checks"] if check["outcome"] == "fail"
        ]  # fmt: skip
    finally:
        lab.on("login", "scancel", job)
