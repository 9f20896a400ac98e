"""Labs come up beside each other, and go without a trace."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from labkit import down, record

from tests.lab.kit import RunningLab, require

pytestmark = pytest.mark.lab


def machine() -> dict[str, set[str]]:
    """Everything on the real machine in which a lab could leave a trace, but for other labs'."""
    links = subprocess.run(
        ["ip", "-o", "link"], capture_output=True, text=True, check=True, timeout=30
    ).stdout
    interfaces = {line.split(":")[1].strip() for line in links.splitlines()}
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        "interfaces": {name for name in interfaces if not name.startswith("exalab")},
        "mounts": {line.split()[4] for line in mounts},
        "root": set(os.listdir("/")),
        "run": set(os.listdir("/run")),
        "accounts": set(Path("/etc/passwd").read_text().splitlines()),
    }


@pytest.fixture
def one() -> Iterator[RunningLab]:
    require("22.05")
    lab = RunningLab(f"one-{os.getpid()}", profile="real")
    yield lab
    lab.lab("down")


@pytest.fixture
def other() -> Iterator[RunningLab]:
    require("22.05")
    lab = RunningLab(f"other-{os.getpid()}")
    yield lab
    lab.lab("down")


def test_down_leaves_nothing(one: RunningLab) -> None:
    before = machine()
    one.up(2)
    known = record.load_running(one.name)
    one.on("login", "srun", "-p", "gpu", "hostname")
    one.on("login", "sbatch", "-p", "gpu", "--wrap=sleep 600")
    one.sh("login", "setsid sleep 614 >/dev/null 2>&1 </dev/null &")
    one.lab("fs", "hang", "gateway")
    living = [process for holder in known.holders.values() for process in holder.processes()]
    assert any(process.name == "sleep" for process in living)
    one.lab("down")
    assert down.traces(one.name, known.subnet, living) == []
    assert machine() == before


def test_traces_are_found(one: RunningLab) -> None:
    """The check above can fail: on a running lab it names a trace of every kind."""
    one.up(2)
    known = record.load_running(one.name)
    found = down.traces(one.name, known.subnet, known.holders["c1"].processes())
    kinds = {word.split()[0] for word in found}
    assert kinds == {"process", "interface", "cgroup", "directory"}
    assert any("(slurmd)" in word for word in found)


def test_down_of_what_is_not_there_is_fine(one: RunningLab) -> None:
    result = one.run("down")
    assert result.returncode == 0
    assert "was not up" in result.stderr
    assert one.run("status").returncode == 3
    assert one.status() == {"schema": "exaslurm-lab/v1", "name": one.name, "up": False}
    missing = one.run("exec", "login", "--", "true")
    assert missing.returncode == 3
    assert f"scripts/lab up --name {one.name}" in missing.stderr


def test_up_again_changes_nothing(one: RunningLab) -> None:
    one.up(2)
    before = one.status()
    began = time.monotonic()
    one.up(2)
    assert time.monotonic() - began < 3
    assert one.status() == before


def test_up_with_other_settings_is_refused(one: RunningLab) -> None:
    one.up(2)
    result = one.run("up", "--nodes=3", "--profile=wide")
    assert result.returncode == 1
    assert "nodes is 2, asked for 3" in result.stderr
    assert "profile is 'real', asked for 'wide'" in result.stderr
    assert f"scripts/lab down --name {one.name}" in result.stderr


def test_two_labs_at_once(one: RunningLab, other: RunningLab) -> None:
    one.up(2)
    other.up(2)
    first, second = one.status(), other.status()
    assert first["outside_address"] != second["outside_address"]
    for lab, value in ((one, first), (other, second)):
        lab.on("c1", "touch", f"/exa/shared/scratch/{lab.name}")
        assert lab.on("c1", "ls", "/exa/shared/scratch").split() == [lab.name]
        assert lab.on("login", "srun", "-p", "gpu", "hostname").strip() == "c2"
        address = value["hosts"]["c2"]["address"]
        assert address in lab.on("login", "scontrol", "show", "node", "c2")
    one.lab("down")
    assert other.on("login", "srun", "-p", "gpu", "hostname").strip() == "c2"
