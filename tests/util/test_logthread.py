"""Logging whose reader hangs, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

PROGRAM = """
import logging, os, sys
from exaslurm.util.logthread import LogThread
lines = LogThread("me")
for n in range(int(sys.argv[1])):
    logging.getLogger("x").info("line %d %s", n, "." * 100)
os.write(int(sys.argv[2]), b"done")
lines.close(timeout_s=0.2)
os._exit(3)
"""


def start(count: int, stderr: int) -> tuple[subprocess.Popen[bytes], int]:
    done, done_write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(count), str(done_write)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stderr=stderr,
        pass_fds=[done_write],
    )
    os.close(done_write)
    return process, done


def test_lines_arrive_whole_with_time_and_name() -> None:
    process, done = start(3, subprocess.PIPE)
    with process, os.fdopen(done, "rb"):
        assert process.stderr is not None
        lines = process.stderr.read().decode().splitlines()
    assert process.returncode == 3
    assert [line.split(" ", 1)[1].split(" .")[0] for line in lines] == [
        f"me: line {n}" for n in range(3)
    ]
    assert time.strptime(lines[0].split()[0], "%Y-%m-%dT%H:%M:%S")


def test_a_reader_that_hangs_stops_nothing() -> None:
    read, write = os.pipe()  # nobody reads: full after 64 KiB
    process, done = start(5000, write)
    with process, os.fdopen(done, "rb") as said:
        os.close(write)
        assert said.read() == b"done"
        assert process.wait(20) == 3
    os.close(read)
