"""The supervisor beside a router."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from exaslurm.errors import UserError
from exaslurm.gateway import supervised
from exaslurm.gateway.options import parse
from exaslurm.gateway.supervised import keep_supervisor
from exaslurm.rundir import RunDir

STAND_IN = """\
#!{python}
import os, sys, time
assert sys.argv[1:3] == ["-m", "exaslurm.supervisor"], sys.argv
assert sys.argv[5] == "--under-gateway"
directory = sys.argv[4]
with open(os.path.join(directory, "starts"), "a") as file:
    file.write(str(os.getpid()) + "\\n")
code = open(os.path.join(directory, "code")).read()
if code:
    sys.exit(int(code))
time.sleep(60)
"""


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    program = tmp_path / "python"
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o700)
    monkeypatch.setattr(supervised.sys, "executable", str(program))
    monkeypatch.setattr(supervised, "_BACKOFF_S", 0.05)
    return RunDir(tmp_path)


def starts(run_dir: RunDir) -> list[int]:
    path = run_dir.path / "starts"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


async def until_started(run_dir: RunDir, times: int) -> None:
    deadline = asyncio.get_running_loop().time() + 20
    while len(starts(run_dir)) < times:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.02)


async def test_it_is_over_when_the_deployment_is(run_dir: RunDir) -> None:
    (run_dir.path / "code").write_text("0")
    await asyncio.wait_for(keep_supervisor(run_dir), 20)
    assert len(starts(run_dir)) == 1


async def test_one_that_dies_is_started_again_and_the_last_ends_with_the_gateway(
    run_dir: RunDir,
) -> None:
    (run_dir.path / "code").write_text("1")
    task = asyncio.create_task(keep_supervisor(run_dir))
    await until_started(run_dir, 2)
    (run_dir.path / "code").write_text("")
    before = len(starts(run_dir))
    await until_started(run_dir, before + 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    for pid in starts(run_dir):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_only_for_a_deployment() -> None:
    assert parse(["--run-dir", "/somewhere", "--supervise"]).supervise
    with pytest.raises(UserError, match="list of engines"):
        parse(["--engines-file", "/somewhere", "--supervise"])
