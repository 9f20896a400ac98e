from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from exaslurm.errors import DeploymentError, StateError
from exaslurm.rundir import RunDir
from exaslurm.submit.lock import deployment_lock
from exaslurm.util.process import start_ticks


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


@pytest.fixture
def no_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without locks (Lustre without -o flock answers ENOSYS)."""

    def flock(fd: int, operation: int) -> None:
        raise OSError(38, os.strerror(38))

    monkeypatch.setattr(fcntl, "flock", flock)


def owner(run_dir: RunDir, host: str, pid: int, ticks: int) -> None:
    text = json.dumps({"host": host, "pid": pid, "start_ticks": ticks})
    (run_dir.path / "submit.owner").write_text(text)


def test_free_again_afterwards(run_dir: RunDir) -> None:
    for _ in range(2):
        with deployment_lock(run_dir, timeout_s=1):
            pass
    assert not (run_dir.path / "submit.owner").exists()


@pytest.mark.usefixtures("no_flock")
def test_without_locks_of_the_file_system(run_dir: RunDir) -> None:
    with (
        deployment_lock(run_dir),
        pytest.raises(DeploymentError, match=f"process {os.getpid()} on {socket.gethostname()}"),
        deployment_lock(run_dir, timeout_s=0.3),
    ):
        pass


@pytest.mark.usefixtures("no_flock")
def test_one_at_a_time(run_dir: RunDir) -> None:
    inside = most = 0

    def work() -> None:
        nonlocal inside, most
        with deployment_lock(run_dir, timeout_s=20):
            inside += 1
            most = max(most, inside)
            inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_the_dead_are_not_waited_for(run_dir: RunDir) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True
    )
    owner(run_dir, socket.gethostname(), int(done.stdout), 1)
    with deployment_lock(run_dir, timeout_s=1):
        pass


def test_the_living_of_another_host_are(run_dir: RunDir) -> None:
    owner(run_dir, "elsewhere", 1, 1)
    with (
        pytest.raises(DeploymentError, match="process 1 on elsewhere") as caught,
        deployment_lock(run_dir, timeout_s=0.3),
    ):
        pass
    assert "submit.owner" in str(caught.value.remedy)
    os.utime(run_dir.path / "submit.owner", (0, 0))
    with deployment_lock(run_dir, timeout_s=1):
        pass


def test_a_pid_that_was_reused_is_dead(run_dir: RunDir) -> None:
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    owner(run_dir, socket.gethostname(), os.getpid(), ticks + 1)
    with deployment_lock(run_dir, timeout_s=1):
        pass


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="nowhere"), deployment_lock(RunDir(tmp_path / "nowhere")):
        pass
