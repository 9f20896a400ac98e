"""A rollout with a real Slurm, routers and simulated engines, under load."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.slurm.conftest import ProductLab, product_lab
from tests.supervisor.test_lab import HOME, Load, history, jobs, ok, start

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

# A third of the speed of the one that serves.
SLOW = """\
schema: exaslurm/v1
deployment: change
site: lab
time_limit: 00:30:00
ray: false
workers: {nodes: 1}
rollout: {steps_percent: [50, 100], hold_s: 20, min_requests: 50}
models:
  - name: pretend
    engine: {kind: simulated, args: {decode-tokens-per-s: 15}}
    shards: [{name: base, replicas: 2}]
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[ProductLab]:
    yield from product_lab("wide-22.05")


def test_a_slow_version_is_stopped_by_itself(lab: ProductLab) -> None:
    """And users see no error. That nothing of it is left afterwards takes as long as draining does:
    see ``scripts/accept service.9``."""
    url, key = start(lab, "change", "00:30:00")
    load = Load(lab, url, key)
    try:
        lab.on("login", "sh", "-c", f"cat > {HOME}/slow.yaml", text=SLOW)
        done = lab.exaslurm("rollout", f"{HOME}/slow.yaml")
        assert done.returncode == 0, done.stderr
        deadline = time.monotonic() + 150
        while (found := rollout(lab))["state"] == "rising":
            assert time.monotonic() < deadline, found
            time.sleep(1)
        asked = load.end()
    finally:
        lab.on("login", "rm", "-f", load.go)
        stopped = lab.exaslurm("stop", "change")
    assert found["state"] in ("undoing", "undone")
    assert "with the new version and" in found["reason"]
    assert "requests (0 failed" in found["figures"]["pretend"]
    assert asked["errors"] == []
    assert asked["answers"] > 100
    lines = history(lab, "change")
    verbs = [line["verb"] for line in lines if line["verb"].startswith("rollout")]
    assert verbs[:3] == ["rollout", "rollout share", "rollout stopped"]
    assert "rollout stopped" in ok(lab, "history", "change")
    assert stopped.returncode == 0, stopped.stderr
    assert jobs(lab) == []


def rollout(lab: ProductLab) -> dict[str, Any]:
    """What ``status`` says of it."""
    found: dict[str, Any] = json.loads(lab.exaslurm("status", "change", "--json").stdout)["rollout"]
    return found
