"""Layout ``local``, with the real init, agent, controller, router and a simulated engine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from exaslurm.core.codec import dumps, loads
from exaslurm.core.ports import AGENT, block_base
from exaslurm.core.submission import Endpoint, Submission
from exaslurm.errors import DeploymentError, ExitCode, StateError, WaitTimeout
from exaslurm.rundir import RunDir
from exaslurm.submit.local import free_block
from exaslurm.submit.stop import stop
from exaslurm.submit.submit import SubmitResult, submit
from exaslurm.util.process import is_alive
from tests.render.plans import make_plan

REPOSITORY = Path(__file__).resolve().parents[2]

SPEC = """\
schema: exaslurm/v1
deployment: t-{name}
site: local
models:
  - name: pretend
    engine: {{kind: simulated}}
    shards: [{{name: base, replicas: {replicas}}}]
"""


def wait_for(what: str, true: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.05)


@dataclass
class Machine:
    """A machine without Slurm, and one deployment on it."""

    directory: Path
    replicas: int = 1

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "USER") if name in os.environ}
        return {
            **kept,
            "HOME": str(self.directory),
            "EXASLURM_HOME": str(self.directory / "state"),
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    @property
    def name(self) -> str:
        return f"{os.getpid()}-{self.directory.name[-8:].strip('_-').lower()}".replace("_", "-")

    @property
    def run_dir(self) -> RunDir:
        return RunDir(self.directory / "state" / "exaslurm" / f"t-{self.name}")

    @property
    def spec(self) -> Path:
        path = self.directory / "spec.yaml"
        path.write_text(SPEC.format(name=self.name, replicas=self.replicas))
        return path

    def submit(self, **environ: str) -> SubmitResult:
        return submit(self.spec, environ={**self.environ, **environ}, talk=print)

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """``exaslurm`` in a session of its own, which ends with it."""
        return subprocess.run(
            [sys.executable, "-m", "exaslurm", *words],
            env=self.environ,
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=60,
            start_new_session=True,
        )

    def record(self, generation: int = 1) -> Submission:
        path = self.run_dir.generation(generation).submission("c000")
        return loads(Submission, path.read_text(), where=str(path))

    def processes(self) -> list[str]:
        """Command lines of what belongs to the deployment."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().decode(errors="replace")
                except OSError:
                    continue
                if str(self.directory) in words:
                    found.append(f"{entry.name} {words[:200]}".replace("\0", " "))
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    it = Machine(tmp_path)
    yield it
    if it.run_dir.path.exists():
        stop(it.run_dir, timeout_s=40, talk=print, environ=it.environ)


def test_an_environment_without_vllm_is_said_at_once(machine: Machine) -> None:
    python = machine.directory / "empty" / "bin" / "python"
    sites = machine.directory / ".config" / "exaslurm" / "sites"
    sites.mkdir(parents=True)
    (sites / "bare.yaml").write_text(
        f"schema: exaslurm/site/v1\nname: bare\nextends: local\npython: {python}\n"
    )
    text = machine.spec.read_text().replace("site: local", "site: bare")
    spec = machine.directory / "vllm.yaml"
    spec.write_text(text.replace("kind: simulated}", "kind: vllm}\n    source: {path: /models/m}"))
    done = machine.command("submit", str(spec))
    assert done.returncode == ExitCode.USAGE, done.stderr
    assert f"{python.with_name('vllm')} is missing" in done.stderr
    assert "scripts/env" in done.stderr
    assert machine.run_dir.generations() == []


def test_from_submit_to_stop(machine: Machine) -> None:
    done = machine.command("submit", "spec.yaml" if machine.spec else "", "--parsable")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "local\n"
    item = machine.record()
    assert item.pid is not None
    assert item.start_ticks is not None
    # The shell that started it is gone; init leads a session of its own and has no terminal.
    assert is_alive(item.pid, item.start_ticks)
    assert os.getsid(item.pid) == item.pid
    assert Path(f"/proc/{item.pid}/cwd").resolve() == Path("/")
    assert Path(f"/proc/{item.pid}/fd/0").resolve() == Path("/dev/null")

    def ready() -> bool:
        return '"ready":true' in (
            machine.run_dir.record("c000").read_text()
            if machine.run_dir.record("c000").exists()
            else ""
        )

    wait_for("a replica is ready", ready)
    endpoint = loads(Endpoint, machine.run_dir.endpoint.read_text(), where="endpoint.json")
    assert [is_alive(router.pid, router.start_ticks) for router in endpoint.routers] == [True]

    again = machine.submit()
    assert again.attached
    assert again.submissions == (item,)
    machine.replicas = 2
    with pytest.raises(DeploymentError, match="another spec"):
        machine.submit()
    refused = machine.command("submit", "spec.yaml" if machine.spec else "")
    assert refused.returncode == ExitCode.USAGE
    assert "rollout" in refused.stderr

    began = time.monotonic()
    stopped = machine.command("stop", f"t-{machine.name}")
    assert stopped.returncode == 0, stopped.stderr
    print(f"stopped after {time.monotonic() - began:.1f} s")
    assert machine.processes() == []
    assert not list(Path("/tmp").glob(f"xs-{os.getuid()}-*{item.pid}*"))
    assert not machine.run_dir.record("c000").exists()
    assert loads(Endpoint, machine.run_dir.endpoint.read_text(), where="x").routers == ()
    assert machine.command("stop", f"t-{machine.name}").returncode == 0


def test_crash_between_start_and_record(machine: Machine) -> None:
    item = machine.submit().submissions[0]
    lost = replace(item, state="intent", job_id=None, pid=None, start_ticks=None)
    generation = machine.run_dir.generation(1)
    generation.submission("c000").write_text(dumps(lost))
    again = machine.submit()
    assert again.attached
    assert (machine.record().pid, machine.record().start_ticks) == (item.pid, item.start_ticks)


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_what_runs_without_a_record_is_found(machine: Machine, damage: str) -> None:
    machine.submit()
    path = machine.run_dir.generation(1).submission("c000")
    path.unlink()
    if damage == "damaged":
        path.write_bytes(b"\xff")
    else:
        assert machine.submit().attached
    assert machine.command("stop", f"t-{machine.name}").returncode == 0
    assert machine.processes() == []
    assert machine.record().state == "stopped"


def test_after_its_end_there_is_a_new_generation(machine: Machine) -> None:
    item = machine.submit().submissions[0]
    assert item.pid is not None
    assert item.start_ticks is not None
    os.kill(item.pid, signal.SIGTERM)
    wait_for("init has ended", lambda: not is_alive(item.pid or 0, item.start_ticks or 0), 60)
    result = machine.submit()
    assert not result.attached
    assert result.generation == 2
    assert machine.record(1).state == "stopped"


def test_a_process_of_another_host_is_left_alone(machine: Machine) -> None:
    item = machine.submit().submissions[0]
    path = machine.run_dir.generation(1).submission("c000")
    elsewhere = replace(item, host="elsewhere")
    path.write_text(dumps(elsewhere))
    assert machine.submit().attached
    with pytest.raises(WaitTimeout, match=f"process {item.pid} on elsewhere"):
        stop(machine.run_dir, timeout_s=1, environ=machine.environ)
    path.write_text(dumps(item))


def test_a_python_that_is_not_there(machine: Machine) -> None:
    sites = machine.directory / "sites"
    sites.mkdir()
    (sites / "local.yaml").write_text(
        "schema: exaslurm/site/v1\nname: local\nextends: local\npython: /nowhere/python\n"
    )
    with pytest.raises(StateError, match=r"exit code 127.*/nowhere/python") as caught:
        machine.submit(EXASLURM_SITE_CONFIG=str(sites))
    assert "local.init.log" in str(caught.value.remedy)
    assert machine.record().state == "refused"


def test_blocks_of_ports() -> None:
    plan = make_plan("local", deployment=f"ports-{os.getpid()}")
    first = free_block(plan)
    assert first in {block_base(plan.ports, 0, n) for n in range(24)}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first + AGENT))
        taken.listen()
        assert free_block(plan) != first


def test_a_dead_gateway_is_started_again(machine: Machine) -> None:
    machine.submit()
    started = machine.run_dir.gateway / "started.json"
    first = json.loads(started.read_text())
    machine.submit()
    assert json.loads(started.read_text()) == first
    os.kill(first["pid"], signal.SIGKILL)
    wait_for("it is gone", lambda: not is_alive(first["pid"], first["start_ticks"]))
    assert machine.submit().attached
    second = json.loads(started.read_text())
    assert second["pid"] != first["pid"]
    assert is_alive(second["pid"], second["start_ticks"])


def test_a_gateway_that_cannot_listen_is_told_with_its_reason(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = machine.spec.read_text() + f"gateway: {{port: {port}}}\n"
        said: list[str] = []
        submit(machine.spec, text=text, environ=machine.environ, talk=said.append)
    assert said[-1] == (
        "the gateway did not start: exaslurm.gateway ended at once (exit code 2): "
        f"cannot listen on 127.0.0.1: port {port} is in use"
    )
