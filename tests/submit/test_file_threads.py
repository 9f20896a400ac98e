"""No thread but the one for files touches the run directory, in any process that lives long: a file
system that hangs must not hang them. (The supervisor, which needs Slurm, makes its whole round on
that thread.)"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from exaslurm.keys.clients import add_key
from exaslurm.rundir import RunDir
from exaslurm.submit.stop import stop
from tests.submit.test_local import Machine, wait_for

SPY = Path(__file__).resolve().parents[1] / "tools" / "file_spy"
FILES = {"files"}
# A third of a lease, and a little.
LOOKED_AT_S = 12.0


class Watched(Machine):
    """A machine on which every process is looked at."""

    @property
    def log(self) -> Path:
        return self.directory / "spy.jsonl"

    @property
    def environ(self) -> dict[str, str]:
        found = super().environ
        return {
            **found,
            "PYTHONPATH": f"{SPY}:{found['PYTHONPATH']}",
            "SPY_ROOT": str(self.directory / "state"),
            "SPY_LOG": str(self.log),
        }


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Watched]:
    watched = Watched(tmp_path)
    yield watched
    if watched.run_dir.path.is_dir():
        stop(watched.run_dir, timeout_s=60, environ=watched.environ)


def exaslurm(machine: Watched, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "exaslurm", *words]
    return subprocess.run(argv, env=machine.environ, capture_output=True, text=True, timeout=120)


@pytest.mark.timeout(180)
def test_only_the_thread_for_files_touches_the_run_directory(machine: Watched) -> None:
    done = exaslurm(machine, "submit", str(machine.spec), "--wait", "--timeout", "90s")
    assert done.returncode == 0, done.stderr
    add_key(RunDir(machine.run_dir.path), "tester")
    switch = Path(f"{machine.log}.on")
    switch.touch()
    # Keys are read, records written, logs copied; and the log of an engine grows.
    end_s = time.monotonic() + LOOKED_AT_S
    for log in machine.directory.glob("**/logs/c000-r*.log"):
        with log.open("a") as file:
            file.write("a line\n")
    wait_for("the time has passed", lambda: time.monotonic() >= end_s)
    switch.unlink()
    found = [json.loads(line) for line in machine.log.read_text().splitlines()]
    programs = Counter(program.split()[1] for program, *_ in found if " " in program)
    assert {"exaslurm.gateway", "exaslurm.controller"} <= set(programs)
    wrong = sorted({tuple(line) for line in found if line[1] not in FILES})
    assert wrong == [], "\n".join(map(str, wrong[:20]))
    assert os.path.isdir(machine.run_dir.path)
