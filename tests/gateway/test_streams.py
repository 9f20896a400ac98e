"""A router whose standard streams are closed, full, or read by nobody."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tools.fleet import wait_for

Start = Callable[..., "subprocess.Popen[bytes]"]
SERVING = re.compile(r"serving .* on (http://\S+)")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts routers by a shell, with redirections; what they say goes to ``tmp_path/said``."""
    listed = tmp_path / "engines.txt"
    listed.write_text("http://127.0.0.1:9\n")
    (tmp_path / "said").touch()
    started = []

    def start(redirections: str, *arguments: str) -> subprocess.Popen[bytes]:
        router = (sys.executable, "-m", "exaslurm.gateway", "--engines-file", str(listed))
        command = ["sh", "-c", f'exec "$@" 2>>{tmp_path}/said {redirections}', "sh", *router]
        reading, writing = os.pipe()
        os.close(reading)  # stdout, where nothing is said of it: a pipe that nobody reads
        process = subprocess.Popen(
            [*command, "--no-auth", "--port", "0", *arguments], stdout=writing
        )
        os.close(writing)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(timeout=10)


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("redirections", [">&-", ">&- <&-", ">/dev/full", ""])
def test_what_becomes_of_stdout_does_not_matter(
    start: Start, tmp_path: Path, redirections: str, workers: str
) -> None:
    process = start(redirections, "--workers", workers)
    wait_for(lambda: SERVING.search((tmp_path / "said").read_text()) or process.poll() is not None)
    for number in (0, 1):
        assert "socket:" not in os.readlink(f"/proc/{process.pid}/fd/{number}")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=15) == 0
    assert "Traceback" not in (tmp_path / "said").read_text()
