"""What is done on a node: processes of a job, a disk, a relay."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from exaslurm.chaos import node
from exaslurm.chaos.faults import seconds_of
from exaslurm.chaos.relay import serve


def sleeper(job: str) -> subprocess.Popen[bytes]:
    """A process of a job, with a child in a session of its own, and its pid on stdout."""
    program = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
        " start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "SLURM_JOB_ID": job},
        stdout=subprocess.PIPE,
    )


def state(pid: int) -> str:
    return node._state(pid)


def test_all_of_a_job_is_killed_and_nothing_else() -> None:
    mine, other = sleeper(f"1{os.getpid()}"), sleeper(f"2{os.getpid()}")
    try:
        children = [int(process.stdout.readline()) for process in (mine, other) if process.stdout]
        given = {"uid": os.getuid(), "job_id": f"1{os.getpid()}"}
        assert node.kill_job(given) == {"killed": 2}
        assert mine.wait(timeout=10) == -signal.SIGKILL
        assert state(children[0]) in ("", "Z")
        assert other.poll() is None
        assert state(children[1]) not in ("", "Z")
        assert node.kill_job(given) == {"killed": 0}
    finally:
        node.kill_job({"uid": os.getuid(), "job_id": f"2{os.getpid()}"})
        for process in (mine, other):
            process.kill()
            process.wait(timeout=10)
            assert process.stdout is not None
            process.stdout.close()


def test_a_disk_is_filled_and_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(tmp_path)

    class Room:
        f_bavail = 3 * node._MIB // real.f_frsize
        f_frsize = real.f_frsize

    monkeypatch.setattr(node.os, "statvfs", lambda _: Room)
    given = {"directory": str(tmp_path), "name": "x.fill", "leave_mib": 1, "most_gib": 1}
    assert node.fill(given) == {"path": str(tmp_path / "x.fill"), "mib": 2}
    assert (tmp_path / "x.fill").stat().st_size == 2 * node._MIB
    with pytest.raises(FileExistsError):
        node.fill(given)
    node.free(given)
    node.free(given)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(node.NotHere, match=r"at most 0\.001 may be taken"):
        node.fill({**given, "most_gib": 0.001})


def test_it_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"tmp": str(tmp_path), "uid": os.getuid(), "run_dir": "/nowhere", "cell": "c000"}
    assert node.main(["find", json.dumps(given)]) == 1
    assert "cell c000 has nothing running" in json.loads(capsys.readouterr().out)["error"]
    assert node.main(["fill", json.dumps({"directory": "/nowhere"})]) == 1
    assert "error" in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("text", "seconds"), [("0:07", 7), ("12:30", 750), ("1:00:01", 3601), ("2-01:00:00", 176400)]
)
def test_times_of_squeue(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


async def test_a_relay_hands_everything_on_late() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    relay = await serve("127.0.0.1", port, 0.3)
    reader, writer = await asyncio.open_connection(*relay.sockets[0].getsockname())
    begin = time.monotonic()
    writer.write(b"one")
    assert await asyncio.wait_for(reader.read(100), 10) == b"one"
    assert time.monotonic() - begin >= 0.3
    # Late, not one after the other: many pieces under way at the same time.
    data = os.urandom(300_000)
    writer.write(data)
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(-1), 10) == data
    writer.close()
    for each in (relay, server):
        each.close()
