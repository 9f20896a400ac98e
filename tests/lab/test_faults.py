"""Each fault does what it says, and can be undone."""

from __future__ import annotations

import pytest

from tests.lab.kit import RunningLab, wait_for

pytestmark = pytest.mark.lab

LIST_SHARED = ("--cwd", "/tmp", "c2", "--", "timeout", "-s", "KILL", "1", "ls", "/exa/shared")


def connects(lab: RunningLab, host: str) -> bool:
    command = ("timeout", "1", "bash", "-c", f"echo > /dev/tcp/{host}/6818")
    return lab.run("exec", "login", "--", *command).returncode == 0


def test_shared_file_system_hangs_and_resumes(lab: RunningLab) -> None:
    lab.lab("fs", "hang", "c2")
    assert lab.status()["hosts"]["c2"]["shared_fs"] == "hung"
    assert lab.run("exec", *LIST_SHARED).returncode == 137
    assert "home" in lab.on("c1", "ls", "/exa/shared")
    lab.lab("fs", "resume", "c2")
    assert "home" in lab.run("exec", *LIST_SHARED).stdout
    assert lab.status()["hosts"]["c2"]["shared_fs"] == "ok"


def test_shared_file_system_goes_and_comes_back(lab: RunningLab) -> None:
    lab.lab("fs", "remove", "c2")
    assert lab.status()["hosts"]["c2"]["shared_fs"] == "gone"
    assert lab.run("exec", *LIST_SHARED).stdout == ""
    touch = lab.run("exec", "--cwd", "/tmp", "c2", "--", "touch", "/exa/shared/scratch/x")
    assert touch.returncode == 1
    lab.lab("fs", "restore", "c2")
    assert "home" in lab.run("exec", *LIST_SHARED).stdout


def test_a_hung_file_system_can_be_removed(lab: RunningLab) -> None:
    lab.lab("fs", "hang", "c2")
    lab.lab("fs", "remove", "c2")
    assert lab.run("exec", *LIST_SHARED).stdout == ""
    lab.lab("fs", "restore", "c2")
    assert lab.status()["hosts"]["c2"]["shared_fs"] == "ok"


def test_link_is_cut_and_restored(lab: RunningLab) -> None:
    assert connects(lab, "c2")
    lab.lab("link", "cut", "c2")
    assert lab.status()["hosts"]["c2"]["link"] == "cut"
    assert not connects(lab, "c2")
    lab.lab("link", "restore", "c2")
    wait_for("c2 answers again", lambda: connects(lab, "c2"))


def test_a_node_is_killed_and_started(lab: RunningLab) -> None:
    lab.sh("c2", "setsid sleep 613 >/dev/null 2>&1 </dev/null &")
    lab.lab("kill-node", "c2")
    assert not connects(lab, "c2")
    assert lab.run("exec", "c2", "--", "true").returncode == 3
    host = lab.status()["hosts"]["c2"]
    assert (host["up"], host["pid"], host["link"]) == (False, None, "off")
    lab.lab("start-node", "c2")
    wait_for("c2 is idle", lambda: lab.status()["hosts"]["c2"]["slurm_state"] == "idle")
    assert lab.sh("c2", "pgrep -f '[s]leep 613' || true") == ""


def test_up_mends_what_is_broken(lab: RunningLab) -> None:
    lab.lab("kill-node", "c3")
    lab.lab("fs", "hang", "c2")
    lab.lab("link", "cut", "c1")
    lab.up(3)
    for name, host in lab.status()["hosts"].items():
        assert (host["up"], host["link"], host["shared_fs"]) == (True, "up", "ok"), name
        assert set(host["daemons"].values()) == {"running"}, name
