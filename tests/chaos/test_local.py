"""A whole run on this machine: init, agent, controller, router, two simulated engines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exaslurm.errors import ExitCode
from exaslurm.rundir import RunDir

REPOSITORY = Path(__file__).resolve().parents[2]
NAME = f"t-chaos-{os.getpid()}"
SPEC = f"""\
schema: exaslurm/v1
deployment: {NAME}
site: local
models:
  - name: pretend
    engine: {{kind: simulated}}
    shards: [{{name: base, replicas: 2}}]
"""


class Machine:
    """A deployment on this machine, and its command line."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.run_dir = RunDir(directory / "state" / "exaslurm" / NAME)
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "EXASLURM_HOME": str(directory / "state"),
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def begin(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "exaslurm", *words],
            env=self.environ,
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def command(self, *words: str) -> tuple[int, str, str]:
        with self.begin(*words) as process:
            out, err = process.communicate(timeout=90)
        return process.returncode, out, err

    def chaos(self, *words: str) -> dict[str, Any]:
        """The one line of JSON."""
        quick = ("--before", "0.5", "--after", "0.5", "--timeout", "60", "--concurrency", "6")
        code, out, err = self.command("chaos", NAME, *words, *quick, "--json")
        assert code == ExitCode.OK, f"{err}\n{out}"
        (line,) = out.splitlines()
        return dict(json.loads(line))


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    it = Machine(tmp_path_factory.mktemp("chaos"))
    (it.directory / "spec.yaml").write_text(SPEC)
    code, _, err = it.command("submit", "spec.yaml", "--wait", "--timeout", "1m")
    assert code == 0, err
    yield it
    it.command("stop", NAME)


def test_a_killed_engine_costs_streams_that_had_begun_and_nothing_else(machine: Machine) -> None:
    report = machine.chaos("kill-engine", "--replica", "c000-r0001", "--streams", "0.7")
    assert report["schema"] == "exaslurm/chaos/1"
    found = report["figures"]
    assert found["failed"]["not_begun"] == found["failed"]["begun_cut"] == 0
    assert found["failed"]["begun_event"] + found["retried"] >= 1
    assert found["sent"] == found["ok"] + found["failed"]["begun_event"]
    assert report["to_strength_s"] > 0
    assert (report["engines_same"], report["engines_changed"]) == (1, 1)
    assert report["simulated"] is True


def test_agent_and_controller_come_back_and_engines_stay(machine: Machine) -> None:
    report = machine.chaos("kill-head")
    assert [text.split(" on ")[0] for text in report["did"]] == [
        "SIGKILL to agent",
        "SIGKILL to controller",
    ]
    assert report["figures"]["ok"] == report["figures"]["sent"]
    assert (report["engines_same"], report["engines_changed"]) == (2, 0)


def test_a_killed_router_costs_one_reconnect(machine: Machine) -> None:
    report = machine.chaos("kill-router", "--max-tokens", "64")
    found = report["figures"]
    assert found["ok"] == found["sent"]
    assert found["reconnected"] >= 1
    assert (report["engines_same"], report["engines_changed"]) == (2, 0)


def test_a_run_that_is_ended_mends_and_one_that_is_killed_leaves_it_to_undo(
    machine: Machine,
) -> None:
    for number in (signal.SIGINT, signal.SIGKILL):
        process = machine.begin("chaos", NAME, "hang-engine", "--for", "60")
        pid = wait_for_stopped(machine)
        os.kill(process.pid, number)
        process.communicate(timeout=30)
        if number == signal.SIGKILL:
            assert state(pid) == "T"
            code, out, _ = machine.command("chaos", NAME, "--undo")
            assert (code, out) == (0, "mended: SIGCONT to c000-r0000\n") or (
                code,
                out,
            ) == (0, "mended: SIGCONT to c000-r0001\n")
        assert state(pid) not in ("T", "t")
        assert list(machine.run_dir.chaos.iterdir()) == []
    assert machine.command("chaos", NAME, "--undo")[1] == "nothing is left to mend\n"


def wait_for_stopped(machine: Machine) -> int:
    """Pid of the engine that has been stopped; its undo is on record then."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        _, out, _ = machine.command("status", NAME, "--json")
        pids = [item["pid"] for item in json.loads(out)["cells"][0]["replicas"]]
        stopped = [pid for pid in pids if pid and state(pid) == "T"]
        if stopped and list(machine.run_dir.chaos.glob("*.json")):
            return int(stopped[0])
    raise AssertionError("no engine was stopped")


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def test_what_is_not_for_this_site_is_refused(machine: Machine) -> None:
    code, _, err = machine.command("chaos", NAME, "cut-link")
    assert code == ExitCode.USAGE
    assert "site local does not say how to do cut-link" in err
    assert "chaos.link" in err
    sites = machine.directory / ".config" / "exaslurm" / "sites"
    sites.mkdir(parents=True, exist_ok=True)
    text = "schema: exaslurm/site/v1\nname: local\nextends: local\nchaos: {lab: false}\n"
    (sites / "local.yaml").write_text(text)
    try:
        code, _, err = machine.command("chaos", NAME, "kill-agent")
        assert code == ExitCode.USAGE
        assert "site local is no lab" in err
        # With the word it goes on, to the next thing that is wrong.
        _, _, err = machine.command("chaos", NAME, "cut-link", "--this-is-not-a-lab")
        assert "does not say how to do cut-link" in err
    finally:
        (sites / "local.yaml").unlink()
