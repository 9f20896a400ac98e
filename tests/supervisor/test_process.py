"""The supervisor's process: how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from exaslurm.errors import StateError
from exaslurm.submit.records import write_desired
from exaslurm.util.files import read_text
from tests.supervisor.conftest import Site

PATIENCE_S = 60.0


def start(site: Site, *options: str) -> subprocess.Popen[bytes]:
    """One that finds no Slurm, and says so when it has looked for the first time."""
    argv = [sys.executable, "-m", "exaslurm.supervisor", "--run-dir", str(site.run_dir.path)]
    environ = {**site.environ, "PATH": "/nowhere", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([*argv, *options], env=environ)


def wait_until_up(site: Site, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        assert process.poll() is None
        assert time.monotonic() < deadline
        try:
            if json.loads(read_text(site.run_dir.supervisor))["pid"] == process.pid:
                return
        except StateError:
            pass
        time.sleep(0.05)


@pytest.mark.parametrize(("options", "code"), [((), 0), (("--under-gateway",), 143)])
def test_told_to_end(site: Site, options: tuple[str, ...], code: int) -> None:
    """A gateway starts one again that somebody has ended while the deployment goes on."""
    process = start(site, *options)
    try:
        wait_until_up(site, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == code
    finally:
        process.kill()
        process.wait()


def test_it_is_over_when_the_deployment_is(site: Site) -> None:
    write_desired(site.run_dir, run=False, generation=1)
    process = start(site, "--under-gateway")
    try:
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
