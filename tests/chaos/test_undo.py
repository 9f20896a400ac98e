"""What is broken is on record until it is mended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from exaslurm.chaos.reach import CommandFailed
from exaslurm.chaos.undo import Mending, mend_all
from exaslurm.rundir import RunDir


class Commands:
    """Notes what is run; what contains ``fails`` fails."""

    def __init__(self, fails: str = "nothing") -> None:
        self.ran: list[str] = []
        self.fails = fails

    def __call__(self, argv: Sequence[str]) -> None:
        text = " ".join(argv)
        self.ran.append(text)
        if self.fails in text:
            raise CommandFailed(f"{text} failed")


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "d")


def records(run_dir: RunDir) -> list[Path]:
    return sorted(run_dir.chaos.glob("*.json")) if run_dir.chaos.is_dir() else []


def test_it_is_written_before_and_gone_after(run_dir: RunDir) -> None:
    commands = Commands()
    mending = Mending(run_dir, "cut-link", commands)
    assert records(run_dir) == []
    mending.will("link of c2", ["lab", "link", "restore", "c2"])
    mending.will("link of c3", ["lab", "link", "restore", "c3"])
    (path,) = records(run_dir)
    assert path.stat().st_mode & 0o077 == 0
    assert [step["says"] for step in json.loads(path.read_text())["steps"]] == [
        "link of c2",
        "link of c3",
    ]
    assert commands.ran == []
    assert mending.mend() == (["link of c3", "link of c2"], [])
    assert commands.ran == ["lab link restore c3", "lab link restore c2"]
    assert records(run_dir) == []
    assert mending.mend() == ([], [])
    assert len(commands.ran) == 2


def test_what_could_not_be_mended_stays_on_record(run_dir: RunDir) -> None:
    commands = Commands(fails="c3")
    mending = Mending(run_dir, "cut-link", commands)
    for node in ("c2", "c3", "c4"):
        mending.will(f"link of {node}", ["restore", node])
    done, left = mending.mend()
    assert done == ["link of c4", "link of c2"]
    assert left == ["link of c3: restore c3 failed"]
    (path,) = records(run_dir)
    assert [step["argv"] for step in json.loads(path.read_text())["steps"]] == [["restore", "c3"]]
    commands.fails = "nothing"
    assert mending.mend() == (["link of c3"], [])
    assert records(run_dir) == []


def test_after_a_kill_another_process_mends(run_dir: RunDir) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from exaslurm.chaos.undo import Mending; from exaslurm.rundir import RunDir\n"
        "it = Mending(RunDir(Path(sys.argv[1])), 'cut-link', print)\n"
        "it.will('link of c2', ['restore', 'c2'])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run(
        [sys.executable, "-c", program, str(run_dir.path)],
        env={**os.environ, "PYTHONPATH": str(root)},
        timeout=60,
    )
    assert len(records(run_dir)) == 1
    commands = Commands()
    assert mend_all(run_dir, commands) == (["link of c2"], [])
    assert commands.ran == ["restore c2"]
    assert mend_all(run_dir, commands) == ([], [])


def test_what_a_living_process_has_broken_is_its_own(run_dir: RunDir) -> None:
    commands = Commands()
    Mending(run_dir, "hang-fs", commands).will("files of c2", ["resume", "c2"])
    done, left = mend_all(run_dir, commands)
    assert done == []
    assert f"process {os.getpid()} is at it" in left[0]
    assert commands.ran == []
