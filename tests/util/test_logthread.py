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


ON_FILES = """
import logging, os, threading
from exaslurm.util.iothread import IoThread
from exaslurm.util.logthread import LogThread, write_on
log, lines, files = logging.getLogger("x"), LogThread("me"), IoThread("files")
log.info("before")
write_on(files)
free = threading.Event()
files.post(free.wait)                      # a file system that hangs
for n in range(3): log.info("line %d", n)
names = sorted(thread.name for thread in threading.enumerate())
files.post(lambda: log.info("from there, %s", files.is_here))
free.set()
lines.close(timeout_s=5)
os.write(1, " ".join(names).encode())
os._exit(0)
"""


def test_the_thread_for_files_writes_the_log() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ON_FILES],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    said = [line.split(" me: ")[1] for line in done.stderr.splitlines()]
    assert sorted(said) == ["before", "from there, True", "line 0", "line 1", "line 2"]
    assert "files" in done.stdout.split()


DEAD = """
import errno, logging, os, sys
from exaslurm.util.logthread import LogThread
class Dead:
    def __init__(self): self.left = 2
    def write(self, text):
        if self.left:
            self.left -= 1
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        os.write(2, text.encode())
    def flush(self): pass
sys.stderr = Dead()
lines = LogThread("me")
for n in range(3): logging.getLogger("x").info("line %d", n)
lines.close(timeout_s=5)
os._exit(0)
"""


def test_a_log_whose_file_system_came_back_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("ab") as file:
        subprocess.run(
            [sys.executable, "-c", DEAD],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stderr=file,
            timeout=30,
            check=True,
        )
    assert [line.split(" me: ")[1] for line in path.read_text().splitlines()] == [
        "line 0",
        "line 1",
        "line 2",
    ]


HELD = """
import logging, os, threading
from exaslurm.util.iothread import IoThread
from exaslurm.util.logthread import LogThread, write_on
log, lines, files = logging.getLogger("x"), LogThread("me"), IoThread("files")
write_on(files)
files.post(lambda: [log.info("%s", "." * 100) for _ in range(5000)])  # nobody reads: it hangs
for n in range(1000): log.info("%s", "." * 100)
os.write(1, b"done")
os._exit(0)
"""


def test_the_thread_for_files_that_hangs_in_a_line_of_its_own_stops_nobody() -> None:
    read, write = os.pipe()
    done = subprocess.run(
        [sys.executable, "-c", HELD],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=write,
        timeout=30,
    )
    os.close(write)
    os.close(read)
    assert done.stdout == b"done"
