"""A replica and a node are drained, and an engine hangs, under load: no request fails."""

from __future__ import annotations

from typing import Any

import pytest

from tests.end_to_end.conftest import Lab, Proof

from acceptance.lab import HOME, until  # isort: skip
from acceptance.path.line_05 import Load  # isort: skip

NAME = "drained"
SITE = """\
schema: exaslurm/site/v1
name: quick
extends: lab
timeouts: {hung_s: 4}
"""
SPEC = f"""\
schema: exaslurm/v1
deployment: {NAME}
site: quick
ray: false
workers: {{nodes: 3}}
models:
  - name: pretend
    engine: {{kind: simulated}}
    shards: [{{name: base, replicas: 3}}]
"""


def replicas(here: Lab) -> dict[str, dict[str, Any]]:
    return {item["id"]: item for cell in here.status(NAME)["cells"] for item in cell["replicas"]}


@pytest.mark.lab
@pytest.mark.timeout(600)
def test_nobody_notices(wide_lab: Lab, line: Proof) -> None:
    here = wide_lab
    here.write(f"{HOME}/.config/exaslurm/sites/quick.yaml", SITE)
    line.ran("three replicas are ready", here.submit(line, SPEC, NAME))
    target = here.target(NAME, "pretend")
    stop, tell = f"{HOME}/load-stops", f"{HOME}/load-runs"
    here.sh(f"rm -f {stop} {tell}")
    order = {**target, "requests": 20000, "concurrency": 6, "pause_s": 0.1, "until": stop,
             "max_tokens": 16, "started": tell}  # fmt: skip
    with Load(here, order) as load:
        try:
            until(lambda: here.sh(f"test -e {tell}").returncode == 0, 60, 0.1)
            drain_replica(here, line)
            drain_node(here, line)
            hang(here, line)
        finally:
            here.sh(f"touch {stop}")
    line.at_least("requests answered meanwhile", load.ended["ok"], 100)
    failed = load.ended["not_begun"] + load.ended["begun"]
    line.at_most("requests failed", failed, 0, "")
    unknown = here.exaslurm("drain", NAME, "replica", "c000-r0009")
    line.check("a replica that is not there", unknown.returncode == 2, unknown.stderr)
    line.check("the nearest is named", "did you mean c000-r000" in unknown.stderr, unknown.stderr)
    assert line.wrong == []


def drain_replica(here: Lab, line: Proof) -> None:
    before = replicas(here)
    done = here.exaslurm("drain", NAME, "replica", "c000-r0001", "--reason", "slow", "--wait")
    line.ran("drain of a replica", done)
    after = replicas(here)
    old, new = before["c000-r0001"], after["c000-r0001"]
    line.check("it is on another node", new["node"] != old["node"], new["node"])
    line.check("and ready", new["state"] == "ready", new["state"])
    left = here.sh(f"ps -p {old['pid']} -o pid= || true", host=old["node"], user="root").stdout
    line.check("nothing is left of its engine", not left.strip(), left)
    del before["c000-r0001"], after["c000-r0001"]
    same = {key: item["pid"] for key, item in after.items()}
    line.check("the others are the same", same == {k: item["pid"] for k, item in before.items()})


def drain_node(here: Lab, line: Proof) -> None:
    node = replicas(here)["c000-r0000"]["node"]
    done = here.exaslurm("drain", NAME, "node", node, "--reason", "a fan", "--wait")
    line.ran("drain of a node", done)
    after = replicas(here)
    line.check("nothing is on it", node not in {item["node"] for item in after.values()})
    line.check("all are ready", {item["state"] for item in after.values()} == {"ready"})
    status = here.exaslurm("status", NAME).stdout
    line.check("status says why", f"{node} carries nothing: drained by exa1: a fan" in status)
    excluded = here.sh(f"cat {HOME}/exaslurm/{NAME}/excluded/c000.json").stdout
    line.check("the next job does without it", f'"{node}"' in excluded, excluded)


def hang(here: Lab, line: Proof) -> None:
    victim = replicas(here)["c000-r0002"]
    here.on(victim["node"], "kill", "-STOP", str(victim["pid"]), user="root")
    hung = until(lambda: replicas(here)["c000-r0002"]["restarts"] == 1, 30, 0.5)
    line.check("the hung engine is found", hung)
    back = until(lambda: replicas(here)["c000-r0002"]["state"] == "ready", 30, 0.5)
    line.check("and is back", back)
    log = f"{HOME}/exaslurm/{NAME}/gen/1/logs/c000/{victim['node']}.init.log"
    why = here.sh(f"grep -c 'hung: no answer on /health for 4 s' {log}").stdout.strip()
    line.check("the reason is in the log", why == "1", why)
