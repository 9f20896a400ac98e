"""What goes wrong in practice: each one clear error and the documented exit code."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from exaslurm.keys.clients import add_key
from exaslurm.rundir import RunDir

Run = Callable[..., Any]

SPEC = """\
schema: exaslurm/v1
deployment: {name}
site: {site}
models:
  - name: pretend
    engine: {{kind: simulated}}
"""


def spec(folder: Path, *, name: str = "oops", site: str = "lab", more: str = "") -> Path:
    path = folder / "spec.yaml"
    path.write_text(SPEC.format(name=name, site=site) + more)
    return path


def one_error(done: Any, code: int, *says: str) -> None:
    """Exactly one error on stderr, nothing on stdout, no traceback."""
    assert done.code == code, done.err
    assert done.out == ""
    errors = [line for line in done.err.splitlines() if line.startswith("exaslurm: error: ")]
    assert len(errors) == 1, done.err
    assert "Traceback" not in done.err
    for text in says:
        assert text in done.err


def test_bad_spec(exaslurm: Run, tmp_path: Path) -> None:
    path = spec(tmp_path, more="    shards: [{name: base, replica: 2}]\n")
    done = exaslurm("submit", path)
    assert done.code == 2
    assert f"{path}:7: models[0].shards[0].replica" in done.err
    assert "did you mean replicas?" in done.err


def test_every_problem_of_a_spec_is_listed(exaslurm: Run, tmp_path: Path) -> None:
    path = spec(tmp_path, more="workers: {nodes: 0}\nworker: 3\n")
    done = exaslurm("validate", path, "--json")
    found = json.loads(done.out)
    assert (done.code, found["valid"]) == (2, False)
    assert len(found["problems"]) == 2


def test_no_such_spec(exaslurm: Run, tmp_path: Path) -> None:
    one_error(exaslurm("submit", tmp_path / "no.yaml"), 2, "cannot read", "exaslurm init")


def test_unknown_site(exaslurm: Run, tmp_path: Path) -> None:
    one_error(exaslurm("submit", spec(tmp_path, site="labb")), 2, "unknown site 'labb'", "lab")


def test_missing_slurm_commands(
    exaslurm: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = exaslurm("submit", spec(tmp_path))
    one_error(done, 4, "cannot run 'sbatch' here", "login node", "site: local")


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="no sbatch on this machine")
def test_unreachable_slurmctld(
    exaslurm: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real sbatch, and a port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    conf = tmp_path / "slurm.conf"
    conf.write_text(
        f"ClusterName=gone\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort={port}\n"
        "AuthType=auth/none\nCredType=cred/none\nMessageTimeout=2\nNodeName=n1\n"
        "PartitionName=p Nodes=n1\n"
    )
    monkeypatch.setenv("SLURM_CONF", str(conf))
    done = exaslurm("submit", spec(tmp_path))
    assert done.code == 4, done.err
    assert "Traceback" not in done.err
    assert "remedy: " in done.err


@pytest.mark.parametrize("verb", [["status"], ["stop"], ["chat"], ["logs"], ["key", "list"]])
def test_unknown_deployment(exaslurm: Run, verb: list[str]) -> None:
    one_error(exaslurm(*verb, "nobody"), 2, "no deployment 'nobody'", "known: there are none")


def test_unwritable_run_directory(
    exaslurm: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXASLURM_HOME", "/sys/kernel")  # not even root may write there
    done = exaslurm("submit", spec(tmp_path, site="local"))
    one_error(done, 2, "cannot make directory /sys/kernel/exaslurm", "EXASLURM_HOME")


def test_full_disk(tmp_path: Path) -> None:
    """A file system of 64 KiB, in a namespace of its own."""
    path = spec(tmp_path, site="local")
    full = tmp_path / "full"
    full.mkdir()
    script = (
        f"mount -t tmpfs -o size=64k none {full} || exit 99; "
        f"dd if=/dev/zero of={full}/x bs=4k count=15 2>/dev/null; "
        f"exec {sys.executable} -m exaslurm submit {path}"
    )
    unshare = ["unshare", "--mount", "--map-root-user"] if os.getuid() else ["unshare", "--mount"]
    try:
        done = subprocess.run(
            [*unshare, "sh", "-c", script],
            env={**os.environ, "EXASLURM_HOME": str(full)},
            capture_output=True,
            text=True,
            timeout=60,
        )
    except FileNotFoundError:
        pytest.skip("no unshare on this machine")
    if done.returncode == 99 or "unshare failed" in done.stderr:
        pytest.skip("no mount namespaces here")
    assert done.returncode == 2, done.stderr
    assert "No space left on device" in done.stderr
    assert "remedy: free some space there" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A deployment of a simulated engine on this machine: everything but the model is real."""
    folder = tmp_path_factory.mktemp("served")
    path = spec(folder, name="served", site="local")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("EXASLURM_", "SLURM_"))}
    environ["EXASLURM_HOME"] = str(folder)

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "exaslurm", *words],
            env=environ,
            capture_output=True,
            text=True,
            timeout=100,
        )

    try:
        done = call("submit", str(path), "--wait", "--timeout", "60s")
        assert done.returncode == 0, done.stderr
        yield environ
    finally:
        call("stop", "served")


@pytest.fixture
def at(served: dict[str, str], exaslurm: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("EXASLURM_HOME", served["EXASLURM_HOME"])
    return exaslurm


def test_a_served_deployment_answers(at: Run) -> None:
    done = at("chat", "served", "Hello?", "--max-tokens", "8")
    assert (done.code, done.err) == (0, "")
    assert done.out.strip()
    status = json.loads(at("status", "served", "--json").out)
    assert (status["phase"], status["replicas_ready"]) == ("ready", 1)
    assert at("endpoint", "served").out.startswith("http://127.0.0.1:")


def test_chat_leaves_no_key_behind(at: Run) -> None:
    at("chat", "served", "Hello?", "--max-tokens", "2")
    assert json.loads(at("key", "list", "served", "--json").out)["keys"] == []


def test_wrong_key(at: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXASLURM_API_KEY", "exa-wrong")
    one_error(at("chat", "served", "Hello?"), 2, "does not know this key", "exaslurm key add")


def test_unknown_model(at: Run) -> None:
    done = at("chat", "served", "Hello?", "--model", "gpt-99")
    one_error(done, 2, "gpt-99", "remedy: ")


def test_a_key_for_what_is_not_served(at: Run) -> None:
    done = at("key", "add", "served", "limited", "--model", "other")
    one_error(done, 2, "served does not serve 'other'", "it serves pretend")


def test_a_key_for_another_model(
    at: Run, served: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As one that was made for an earlier generation.
    run_dir = RunDir(Path(served["EXASLURM_HOME"]) / "exaslurm" / "served")
    key = add_key(run_dir, "limited", models=["other"])
    try:
        monkeypatch.setenv("EXASLURM_API_KEY", key)
        done = at("chat", "served", "Hello?", "--model", "pretend")
        assert done.code == 2
        assert "Traceback" not in done.err
    finally:
        at("key", "remove", "served", "limited")


def test_the_same_key_name_twice(at: Run) -> None:
    at("key", "add", "served", "double")
    try:
        one_error(at("key", "add", "served", "double"), 2, "already", "exaslurm key remove")
    finally:
        at("key", "remove", "served", "double")


def test_submit_again_attaches_and_a_changed_spec_is_refused(at: Run, tmp_path: Path) -> None:
    same = spec(tmp_path, name="served", site="local")
    assert json.loads(at("submit", same, "--json").out)["attached"] is True
    changed = spec(tmp_path, name="served", site="local", more="    max_replicas_per_node: 3\n")
    one_error(at("submit", changed), 2, "runs with another spec", "rollout")
