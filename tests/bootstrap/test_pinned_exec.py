"""What a process is after pinned exec: place, environment, log, secrets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from exaslurm.core.codec import dumps
from exaslurm.core.execspec import ExecSpec

SCRIPT = Path(__file__).resolve().parents[2] / "exaslurm" / "bootstrap" / "pinned_exec.py"
SHOW = (
    "import json, os, signal; print(json.dumps({'cpus': sorted(os.sched_getaffinity(0)), "
    "'env': dict(os.environ), 'cwd': os.getcwd(), 'umask': os.umask(0), 'pid': os.getpid()}))"
)


def run(tmp_path: Path, spec: ExecSpec | dict[str, Any]) -> tuple[int, str]:
    """(exit code, what is in the log)."""
    file = tmp_path / "spec.json"
    file.write_text(dumps(spec) if isinstance(spec, ExecSpec) else json.dumps(spec))
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-s", str(SCRIPT), str(file)],
        env={"PATH": os.environ["PATH"], "KEEP": "1", "DROP": "1"}, timeout=20, check=False,
    )  # fmt: skip
    assert not file.exists()
    log = tmp_path / "log"
    return done.returncode, log.read_text() if log.exists() else ""


def secret(tmp_path: Path, mode: int = 0o600) -> Path:
    path = tmp_path / "secret"
    path.write_text("s3cret\n")
    path.chmod(mode)
    return path


def test_place_environment_and_log(tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    spec = ExecSpec(
        argv=(sys.executable, "-c", SHOW),
        env={"ADDED": "a b"},
        unset=("DROP", "NEVER_SET"),
        secret_env={"SECRET": str(secret(tmp_path))},
        cores=(core,),
        mem_nodes=(0,),
        log=str(tmp_path / "log"),
        cwd=str(tmp_path),
    )
    code, text = run(tmp_path, spec)
    assert code == 0, text
    shown = json.loads(text.splitlines()[-1])
    assert shown["cpus"] == [core]
    assert shown["cwd"] == str(tmp_path)
    assert shown["umask"] == 0o077
    environment = shown["env"]
    assert environment["ADDED"] == "a b"
    assert environment["SECRET"] == "s3cret"
    assert environment["KEEP"] == "1"
    assert "DROP" not in environment
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0


def test_the_log_is_appended_to(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("earlier\n")
    spec = ExecSpec(argv=("sh", "-c", "echo out; echo err >&2"), log=str(tmp_path / "log"))
    assert run(tmp_path, spec) == (0, "earlier\nout\nerr\n")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = secret(tmp_path, mode)
    spec = ExecSpec(argv=("true",), secret_env={"S": str(path)}, log=str(tmp_path / "log"))
    code, text = run(tmp_path, spec)
    assert code == 78
    assert str(path) in text
    assert "s3cret" not in text


def test_cpus_that_are_not_ours_are_refused(tmp_path: Path) -> None:
    spec = ExecSpec(argv=("true",), cores=(100_000,), log=str(tmp_path / "log"))
    code, text = run(tmp_path, spec)
    assert code == 78
    assert "cannot run on CPUs [100000]" in text


def test_a_numa_node_that_is_not_there_is_said_and_survived(tmp_path: Path) -> None:
    spec = ExecSpec(argv=("echo", "runs"), mem_nodes=(63,), log=str(tmp_path / "log"))
    code, text = run(tmp_path, spec)
    assert code == 0
    assert text.splitlines()[-1] == "runs"
    assert "memory is not bound to NUMA node 63" in text


@pytest.mark.parametrize(
    "spec",
    [{"argv": ["/no/such/program"]}, {}, [], {"argv": []}, {"argv": ["true"], "cwd": "/no/where"}],
)
def test_what_cannot_run_is_127_and_said(tmp_path: Path, spec: Any) -> None:
    if isinstance(spec, dict):
        spec = {**spec, "log": str(tmp_path / "log")}
    code, text = run(tmp_path, spec)
    assert code == 127
    assert not isinstance(spec, dict) or "cannot start the program" in text
