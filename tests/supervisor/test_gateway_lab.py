"""A gateway that runs in jobs, and a job that nobody waits for, with a real Slurm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.kit import wait_for
from tests.slurm.conftest import ProductLab, product_lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

HOME = "/exa/shared/home/exa1"
RUN_DIR = f"{HOME}/exaslurm/led"
SPEC = """\
schema: exaslurm/v1
deployment: led
site: lab
time_limit: 00:30:00
ray: false
workers: {nodes: 1}
gateway: {home: job, spares: 1}
models:
  - name: pretend
    engine: {kind: simulated}
    shards: [{name: base, replicas: 1}]
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[ProductLab]:
    yield from product_lab("wide-22.05")


def status(lab: ProductLab) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lab.exaslurm("status", "led", "--json").stdout)
    return found


def leader(lab: ProductLab) -> str | None:
    """The gateway job that runs."""
    return next((job["id"] for job in status(lab)["gateway_jobs"] if job["nodes"]), None)


def answers(lab: ProductLab, key: str) -> bool:
    """Whether the deployment's address gives an answer to a request from the login node."""
    url = lab.exaslurm("endpoint", "led").stdout.strip()
    body = json.dumps({"model": "pretend", "prompt": "hello", "max_tokens": 4})
    headers = f"-H 'Authorization: Bearer {key}' -H 'Content-Type: application/json'"
    command = f"curl -s -f -m 5 {headers} -d '{body}' {url}/completions"
    return bool(url) and lab.run("exec", "login", "--", "bash", "-c", command).returncode == 0


def test_the_next_gateway_takes_over(lab: ProductLab) -> None:
    lab.on("login", "sh", "-c", f"cat > {HOME}/led.yaml", text=SPEC)
    done = lab.exaslurm("submit", f"{HOME}/led.yaml", "--wait", "--timeout", "120s")
    assert done.returncode == 0, done.stderr
    try:
        key = lab.exaslurm("key", "add", "led", "test").stdout.strip()
        first = leader(lab)
        assert first is not None
        assert answers(lab, key)
        text = lab.exaslurm("status", "led").stdout
        assert f"job {first} runs on c1; " in text
        assert "waits for its end" in text
        nobodys_job_ends(lab)

        lab.on("login", "scancel", first)
        wait_for("another leads", lambda: leader(lab) not in (None, first), 60)
        wait_for("it answers", lambda: answers(lab, key), 60)
        wait_for("there is a spare", lambda: len(status(lab)["gateway_jobs"]) == 2, 60)
        with_key = lab.sh("login", f"grep -l {key} -r {RUN_DIR} || true").strip()
        assert with_key == ""
    finally:
        stopped = lab.exaslurm("stop", "led")
    assert stopped.returncode == 0, stopped.stderr
    assert lab.on("login", "squeue", "-h", "--me").strip() == ""
    left = lab.sh("login", "pgrep -u exa1 -af exaslurm || true")
    assert [line for line in left.splitlines() if "pgrep" not in line] == []


def nobodys_job_ends(lab: ProductLab) -> None:
    """One that was submitted under a token that nobody waits for."""
    script = f"{RUN_DIR}/gen/1/scripts/c000.sbatch"
    words = ("sbatch", "--parsable", "--job-name=exa-led-c000-00000000")
    job = lab.on("login", *words, f"--output={HOME}/stray.log", script).strip()

    def ended() -> bool:
        shown = lab.on("login", "scontrol", "show", "job", job)
        return shown.count("JobState=COMPLETED") == 2

    wait_for("it has ended", ended, 60)
    assert "ends without serving: c000 was submitted again since" in lab.on(
        "login", "cat", f"{HOME}/stray.log"
    )
    assert status(lab)["replicas_ready"] == 1
