"""Hosts are machines of their own, and `lab exec` enters them as a login does."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import time

import pytest

from tests.lab.kit import LAB, RunningLab, wait_for

pytestmark = pytest.mark.lab


def start(lab: RunningLab, host: str, script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [LAB, "exec", "--name", lab.name, host, "--", "bash", "-c", script],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_exit_codes_pass_through(lab: RunningLab) -> None:
    assert lab.run("exec", "login", "--", "bash", "-c", "exit 7").returncode == 7
    killed = lab.run("exec", "login", "--", "bash", "-c", "kill -KILL $$")
    assert killed.returncode == 128 + signal.SIGKILL
    missing = lab.run("exec", "login", "--", "no-such-command")
    assert missing.returncode == 127
    assert "no-such-command: command not found" in missing.stderr


def test_environment_is_that_of_a_login(lab: RunningLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SBATCH_PARTITION", "nowhere")
    monkeypatch.setenv("VIRTUAL_ENV", "/elsewhere")
    lines = lab.on("login", "env").splitlines()
    values = dict(line.partition("=")[::2] for line in lines)
    assert set(values) <= {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM"}
    assert values["HOME"] == "/exa/shared/home/exa1"
    assert values["PATH"].startswith("/usr/local/bin:/usr/bin:/bin")
    assert lab.on("login", "pwd").strip() == values["HOME"]
    assert lab.on("login", "id", "-un").strip() == "exa1"


def test_options_of_exec(lab: RunningLab) -> None:
    result = lab.run(
        "exec", "--env", "A=b c", "--cwd", "/tmp", "c1", "--", "sh", "-c", "echo $A; pwd"
    )
    assert result.stdout == "b c\n/tmp\n"
    assert lab.run("exec", "--env", "A", "c1", "--", "true").returncode == 2
    assert lab.run("exec", "c9", "--", "true").returncode == 2
    assert lab.run("exec", "--user", "nobody9", "c1", "--", "true").returncode == 2


def test_stdin_passes_through(lab: RunningLab) -> None:
    assert lab.on("login", "tr", "a-z", "A-Z", text="quiet\n") == "QUIET\n"


def test_terminal_passes_through(lab: RunningLab) -> None:
    ours, theirs = pty.openpty()
    command = [LAB, "exec", "--name", lab.name, "login", "--", "bash", "-c", "tty && test -t 0"]
    result = subprocess.run(command, stdin=theirs, capture_output=True, text=True, timeout=30)
    os.close(theirs)
    os.close(ours)
    assert result.returncode == 0
    assert result.stdout.startswith("/dev/pts/")


def test_signals_reach_the_command(lab: RunningLab) -> None:
    script = "trap 'echo told; exit 3' TERM; echo ready; while :; do read -t 0.1 <> <(:); done"
    process = start(lab, "login", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    output, _ = process.communicate(timeout=10)
    assert (output, process.returncode) == ("told\n", 3)


def test_a_killed_exec_takes_its_command_along(lab: RunningLab) -> None:
    process = start(lab, "login", "echo ready; exec sleep 611")
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.communicate(timeout=10)
    wait_for("it ends", lambda: not lab.sh("login", "pgrep -f '[s]leep 611' || true"))


def test_daemons_survive_the_end_of_exec(lab: RunningLab) -> None:
    lab.sh("gateway", "setsid sleep 612 >/dev/null 2>&1 </dev/null &")
    pid = lab.sh("gateway", "pgrep -f '[s]leep 612'").strip()
    assert lab.on("gateway", "ps", "-o", "ppid=", "-p", pid).strip() == "1"
    lab.on("gateway", "kill", pid)


def test_what_is_shared_and_what_is_not(lab: RunningLab) -> None:
    for place, seen in (("/exa/shared/scratch", True), ("/exa/local", False), ("/tmp", False)):
        lab.on("c1", "touch", f"{place}/mark")
        found = lab.run("exec", "c2", "--", "test", "-e", f"{place}/mark").returncode == 0
        assert found is seen, place
        lab.on("c1", "rm", f"{place}/mark")
    lab.on("c1", "touch", "/dev/shm/mark")
    assert not os.path.exists("/dev/shm/mark")
    assert lab.run("exec", "c2", "--", "test", "-e", "/dev/shm/mark").returncode == 1


def test_writes_are_seen_at_once_by_other_hosts(lab: RunningLab) -> None:
    path = "/exa/shared/scratch/counter"
    for number in range(5):
        lab.sh("c1", f"echo {number} > {path}.new && mv {path}.new {path}")
        assert lab.on("c2", "cat", path) == f"{number}\n"


def test_users_are_kept_apart(lab: RunningLab) -> None:
    lab.sh("login", "umask 077; echo secret > private")
    home = "/exa/shared/home/exa1"
    assert lab.on("c1", "cat", f"{home}/private") == "secret\n"
    denied = lab.run("exec", "--user", "exa2", "login", "--", "cat", f"{home}/private")
    assert denied.returncode == 1
    assert "Permission denied" in denied.stderr
    for path in ("/run/exaslurm-lab/shared", "/etc/munge/munge.key", "/var/lib/exaslurm-lab"):
        assert lab.run("exec", "login", "--", "cat", path).returncode != 0


def test_names_resolve_and_unknown_ones_fail_fast(lab: RunningLab) -> None:
    hosts = lab.status()["hosts"]
    for name, host in hosts.items():
        assert lab.on("c1", "getent", "hosts", name).split()[0] == host["address"]
    assert lab.on("c2", "hostname").strip() == "c2"
    began = time.monotonic()
    assert lab.run("exec", "c1", "--", "getent", "hosts", "no-such-host.example").returncode == 2
    assert time.monotonic() - began < 2


def test_hosts_see_only_their_own_processes(lab: RunningLab) -> None:
    names = set(lab.on("c1", "ps", "-A", "-o", "comm=").split())
    assert {"slurmd", "munged", "bindfs"} <= names
    assert "slurmctld" not in names


def test_the_machine_can_reach_a_host(lab: RunningLab) -> None:
    address = lab.status()["hosts"]["ctl"]["address"]
    check = f"import socket; socket.create_connection(({address!r}, 6817), 5).close()"
    assert subprocess.run(["/usr/bin/python3", "-c", check], timeout=30).returncode == 0


def test_a_command_may_use_the_lab_through_its_door(lab: RunningLab) -> None:
    door = "/run/exaslurm-door/lab"
    script = f"{door} exec --user root c2 -- hostname; {door} link cut c9; echo $?; {door} down"
    done = lab.run("exec", "--door", "login", "--", "sh", "-c", script)
    assert done.stdout.split() == ["c2", "2"]
    assert "c9" in done.stderr
    assert "not through this door" in done.stderr
    # For that user alone, and for as long as the command runs.
    script = f"{door} exec --user exa2 login -- {door} status; echo $?"
    done = lab.run("exec", "--door", "login", "--", "sh", "-c", script)
    assert done.stdout.split() == ["126"]
    done = lab.run("exec", "login", "--", door, "status")
    assert done.returncode == 1
    assert "the door of this host is closed" in done.stderr
