"""A rollout with a real Slurm, routers and simulated engines, under load."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

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


def test_a_slow_version_is_taken_back_by_itself(lab: ProductLab) -> None:
    url, key = start(lab, "change", "00:30:00")
    load = Load(lab, url, key)
    try:
        lab.on("login", "sh", "-c", f"cat > {HOME}/slow.yaml", text=SLOW)
        begin = time.monotonic()
        done = lab.exaslurm("rollout", f"{HOME}/slow.yaml")
        assert done.returncode == 0, done.stderr
        while (status := json.loads(lab.exaslurm("status", "change", "--json").stdout))["rollout"][
            "state"
        ] not in ("done", "undone"):
            assert time.monotonic() - begin < 150, status["rollout"]
            time.sleep(1)
        found = load.end()
    finally:
        lab.on("login", "rm", "-f", load.go)
        stopped = lab.exaslurm("stop", "change")
    assert status["rollout"]["state"] == "undone"
    assert "with the new version and" in status["rollout"]["reason"]
    assert {cell["generation"] for cell in status["cells"]} == {1}
    assert found["errors"] == []
    assert found["answers"] > 100
    lines = history(lab, "change")
    verbs = [line["verb"] for line in lines if line["verb"].startswith("rollout")]
    assert verbs == ["rollout", "rollout share", "rollout stopped", "rollout undone"]
    assert "rollout stopped" in ok(lab, "history", "change")
    assert stopped.returncode == 0, stopped.stderr
    assert jobs(lab) == []
