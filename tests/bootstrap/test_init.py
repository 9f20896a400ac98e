"""Init alone: nothing that is said to it, or happens around it, ends it."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.bootstrap.harness import InitUnderTest, is_alive, until


def test_bad_messages_are_answered_and_survived(init: InitUnderTest) -> None:
    init.start()
    bad = [
        b"not json", b"[]", b"{}", b"null", b'{"op": "dance"}', b'{"op": "spawn"}', b"\xff\xfe",
        b'{"op": "spawn", "name": "agent", "exec_file": "x"}', b'{"op": "signal", "name": "none"}',
        b'{"op": "signal", "name": "agent", "sig": "loud"}', b'{"op": "forget", "name": "agent"}',
        b'{"op": "signal", "name": "agent", "sig": 15, "pid": 1}', b'{"op": {}}',
    ]  # fmt: skip
    until(init.starts)
    answers = init.ask(*bad)
    assert [answer["ok"] for answer in answers] == [False] * len(bad)
    assert all(answer["error"] for answer in answers)
    assert init.children()["agent"]["exit"] is None


def test_a_flood_or_half_a_line_is_dropped(init: InitUnderTest) -> None:
    init.start()
    with init.connect() as half, init.connect() as flood:
        half.sendall(b'{"op": "li')
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            flood.sendall(b"x" * (16 << 20))
        assert init.children()


def test_it_goes_on_when_nobody_reads_what_it_says(init: InitUnderTest) -> None:
    process = init.start(stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stderr is not None
    assert process.stdout is not None
    process.stderr.close()
    process.stdout.close()
    first = until(init.starts)[0]
    os.kill(first, signal.SIGKILL)  # it has something to say about that
    until(lambda: len(init.starts()) == 2)
    assert process.poll() is None


def test_the_agent_is_started_again_with_growing_pauses(init: InitUnderTest) -> None:
    (init.root / "exit").write_text("3")
    process = init.start()
    until(lambda: len(init.starts()) >= 3)
    assert process.poll() is None
    (init.root / "exit").write_text("0")
    assert process.wait(10) == 0
    assert not init.node_dir.exists()


def test_taken_ports_are_passed_on_as_75(init: InitUnderTest) -> None:
    (init.root / "exit").write_text("75")
    assert init.start().wait(10) == 75


def test_exit_codes_are_kept_until_they_are_collected(init: InitUnderTest) -> None:
    init.start()
    child = init.spawn("one", "/bin/sh", "-c", "exit 7")
    assert os.path.basename(init.root) not in child["name"]
    ended = until(lambda: (c := init.children()["one"])["exit"] is not None and c)
    assert (ended["exit"], ended["pid"], ended["start"]) == (7, child["pid"], child["start"])
    again = init.spawn("one", "/bin/sh", "-c", "kill -9 $$")
    assert again["pid"] != child["pid"]
    until(lambda: init.children()["one"]["exit"] == -9)
    assert init.ask(b'{"op": "forget", "name": "one"}') == [{"ok": True}]
    assert "one" not in init.children()


def test_a_session_is_ended_with_all_that_came_from_it(init: InitUnderTest) -> None:
    init.start()
    script = (
        "import os, subprocess, time\n"
        "for new in (False, True):\n"
        "    subprocess.Popen(['sleep', '1000'], start_new_session=new)\n"
        # A grandchild whose parent is gone, in a session of its own: only init has it now.
        "subprocess.run(['setsid', 'sh', '-c', 'sleep 1000 & '])\n"
        "print('ready', flush=True)\n"
        "time.sleep(1000)\n"
    )
    child = init.spawn("family", sys.executable, "-c", script)
    init.spawn("other", "sleep", "1000")
    log = init.root / "family.log"
    until(lambda: log.exists() and log.read_text())
    members = init.ask(b'{"op": "members", "name": "family"}')[0]["pids"]
    assert len(members) == 4
    os.kill(child["pid"], signal.SIGKILL)
    until(lambda: init.children()["family"]["exit"] == -9)
    message = b'{"op": "signal", "name": "family", "sig": 9, "session": true}'
    assert init.ask(message)[0]["sent"] == 3
    until(lambda: not any(is_alive(pid) for pid in members))
    assert init.children()["other"]["exit"] is None


def test_children_lead_their_own_sessions_and_get_default_signals(init: InitUnderTest) -> None:
    process = init.start()
    child = init.spawn("one", "sleep", "1000")
    status = until(
        lambda: (
            "sleep" in Path(f"/proc/{child['pid']}/comm").read_text()
            and Path(f"/proc/{child['pid']}/status").read_text()
        )
    )
    assert os.getsid(child["pid"]) == child["pid"]
    masks = dict(line.split(":\t") for line in status.splitlines() if line.startswith("Sig"))
    assert int(masks["SigBlk"], 16) == 0
    ignored = int(masks["SigIgn"], 16)
    assert ignored & 1 << (signal.SIGPIPE - 1) == 0
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        assert ignored & 1 << (number - 1)
        os.kill(child["pid"], number)
    assert init.children()["one"]["exit"] is None
    assert process.poll() is None


def test_sigterm_ends_everything_even_what_does_not_want_to(init: InitUnderTest) -> None:
    (init.root / "stubborn").touch()
    process = init.start()
    script = "trap '' TERM; setsid sh -c \"trap '' TERM; sleep 1000\" & sleep 1000"
    init.spawn("stubborn", "/bin/sh", "-c", script)
    pids = until(
        lambda: len(p := init.ask(b'{"op": "members", "name": "stubborn"}')[0]["pids"]) >= 3 and p
    )
    agent = until(init.starts)[0]
    process.send_signal(signal.SIGTERM)
    refused = init.ask(b'{"op": "spawn", "name": "late", "exec_file": "x"}')[0]
    assert not refused["ok"]
    assert process.wait(15) == 0
    assert not any(is_alive(pid) for pid in [*pids, agent])
    assert not init.node_dir.exists()
    assert list((init.root / "fast").iterdir()) == []


def test_its_directory_is_private_and_a_dead_ones_is_replaced(init: InitUnderTest) -> None:
    process = init.start()
    init.connect().close()
    for path in (init.node_dir, init.root / "fast" / init.node_dir.name):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((init.node_dir / "init.sock").stat().st_mode) == 0o600
    (init.node_dir / "left").touch()
    second = subprocess.run(
        [sys.executable, *process.args[1:]],
        env={**os.environ, "SLURM_JOB_ID": "7", "TEST_ROOT": str(init.root)},
        capture_output=True, text=True, timeout=10,
    )  # fmt: skip
    assert second.returncode == 1
    assert "another init serves" in second.stderr
    agent = until(init.starts)[0]
    process.kill()
    process.wait(5)
    os.kill(agent, signal.SIGKILL)
    init.start()
    init.connect().close()
    assert not (init.node_dir / "left").exists()


def test_what_dead_jobs_left_is_removed_and_nothing_else(init: InitUnderTest) -> None:
    init.start()
    init.connect().close()
    tmp, fast, mine = init.root / "tmp", init.root / "fast", f"xs-{os.getuid()}"
    dead = [tmp / f"{mine}-5-1", fast / f"{mine}-5-1"]
    new, foreign, link = tmp / f"{mine}-6-1", tmp / "xs-1-5-1", tmp / f"{mine}-8-1"
    for path in (*dead, new, foreign):
        path.mkdir()
        (path / "left").touch()
    (dead[1] / "node-dir").symlink_to(dead[0])
    link.symlink_to(foreign)
    living = [init.node_dir, fast / init.node_dir.name]
    for path in (*dead, *living, foreign):
        os.utime(path, (0, 0))
    second = InitUnderTest.__new__(InitUnderTest)
    second.__dict__.update(init.__dict__)
    second.node_dir = tmp / f"{mine}-9-1"
    try:
        second.start(job="9")
        second.connect().close()
        assert not any(path.exists() for path in dead)
        assert all(path.exists() for path in (*living, new, foreign / "left", link))
    finally:
        second.process.terminate()
        second.process.wait(15)


def test_a_too_long_directory_is_refused_with_the_remedy(init: InitUnderTest) -> None:
    long = init.root / ("d" * 90)
    long.mkdir()
    (init.root / "plan.json").write_text(json.dumps({"node": {"tmp": str(long), "local": None}}))
    process = init.start(stderr=subprocess.PIPE)
    assert process.stderr is not None
    with process.stderr as stream:
        text = stream.read().decode()
    assert process.wait(5) == 1
    assert "shorter tmp" in text
    assert list(long.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
@pytest.mark.parametrize(("pause_s", "heard"), [(0.1, 1), (1.2, 2)])
def test_a_signal_that_arrives_twice_at_once_is_one(
    init: InitUnderTest, pause_s: float, heard: int, number: signal.Signals
) -> None:
    """Slurm tells every process of a step, and a container's runtime passes on what it is told;
    the second word means not to wait any longer."""
    (init.root / "stubborn").touch()
    log = init.root / "init.log"
    with log.open("wb") as file:
        process = init.start(stderr=file)
    until(init.starts)
    process.send_signal(number)
    until(lambda: f"stopping: got {number.name}" in log.read_text())
    time.sleep(pause_s)
    process.send_signal(signal.SIGTERM)
    assert process.wait(15) == 0
    assert log.read_text().count("stopping: got SIG") == heard


def test_an_environment_without_what_is_needed_is_named(init: InitUnderTest) -> None:
    process = init.start()
    until(init.starts)
    done = subprocess.run(
        # Without site-packages, as an image that nobody has made ready.
        [sys.executable, "-S", *process.args[1:]],
        env={"SLURM_JOB_ID": "8", "TEST_ROOT": str(init.root)},
        capture_output=True,
        text=True,
        timeout=10,
    )
    assert done.returncode == 1
    assert f"({sys.executable}) lacks aiohttp, orjson: " in done.stderr
