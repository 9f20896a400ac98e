"""A real init whose agent is a stub."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "exaslurm" / "bootstrap" / "init.py"

# Stands in for the agent: init starts `python -m exaslurm.agent` with this package in front.
AGENT = """
import os, pathlib, signal, sys, time
root = pathlib.Path(os.environ["TEST_ROOT"])
with open(root / "starts", "a") as file:
    file.write(f"{os.getpid()}\\n")
if (root / "exit").exists():
    sys.exit(int((root / "exit").read_text()))
if (root / "stubborn").exists():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
while True:
    time.sleep(0.1)
"""


def until(condition: Callable[[], Any], limit_s: float = 10.0) -> Any:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {limit_s} s")


class InitUnderTest:
    """A real init whose agent is a stub."""

    def __init__(self, root: Path) -> None:
        self.root = root
        package = root / "stub" / "exaslurm" / "agent"
        package.mkdir(parents=True)
        # A regular package in front of the real one, with nothing but an agent in it.
        (package.parent / "__init__.py").touch()
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text(AGENT)
        plan = {"node": {"tmp": str(root / "tmp"), "local": str(root / "fast")}}
        (root / "tmp").mkdir()
        (root / "fast").mkdir()
        (root / "plan.json").write_text(json.dumps(plan))
        self.node_dir = root / "tmp" / f"xs-{os.getuid()}-7-1"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, job: str = "7", **streams: Any) -> subprocess.Popen[bytes]:
        bootstrap = self.root / "stub" / "exaslurm" / "bootstrap"
        if not bootstrap.exists():
            shutil.copytree(SCRIPT.parent, bootstrap, ignore=shutil.ignore_patterns("__pycache__"))
        self.process = subprocess.Popen(
            [
                *(sys.executable, str(bootstrap / "init.py"), "--gen-dir", str(self.root)),
                *("--run-dir", str(self.root), "--cell", "c000", "--het-group", "1"),
                *("--head-host", "h", "--port-base", "20000", "--grace-s", "2"),
            ],
            env={**os.environ, "SLURM_JOB_ID": job, "TEST_ROOT": str(self.root)},
            cwd=REPOSITORY,
            **streams,
        )
        return self.process

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(5.0)

        def connected() -> bool:
            try:
                connection.connect(str(self.node_dir / "init.sock"))
            except OSError:
                return False
            return True

        until(connected)
        return connection

    def ask(self, *lines: bytes) -> list[dict[str, Any]]:
        with self.connect() as connection:
            connection.sendall(b"".join(line + b"\n" for line in lines))
            with connection.makefile("rb") as stream:
                return [json.loads(stream.readline()) for _ in lines]

    def children(self) -> dict[str, dict[str, Any]]:
        (answer,) = self.ask(b'{"op": "list"}')
        return {child["name"]: child for child in answer["children"]}

    def spawn(self, name: str, *argv: str) -> dict[str, Any]:
        file = self.root / f"{name}.exec"
        file.write_text(json.dumps({"argv": argv, "log": str(self.root / f"{name}.log")}))
        (answer,) = self.ask(
            json.dumps({"op": "spawn", "name": name, "exec_file": str(file)}).encode()
        )
        assert answer["ok"], answer
        return answer["child"]

    def starts(self) -> list[int]:
        try:
            return [int(pid) for pid in (self.root / "starts").read_text().split()]
        except FileNotFoundError:
            return []


def is_alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text[text.rfind(")") + 2] not in "ZX"


@contextmanager
def running_init() -> Iterator[InitUnderTest]:
    """An init that is started by the test, and ended whatever happens."""
    root = Path(tempfile.mkdtemp(prefix="xi-", dir="/tmp"))
    under_test = InitUnderTest(root)
    try:
        yield under_test
    finally:
        process = under_test.process
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)
        shutil.rmtree(root)
