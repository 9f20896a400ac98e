"""A cell of four workers with a bad node comes up on three; the next one does without it."""

from __future__ import annotations

import json
import time
from typing import Any

from acceptance.lab import HOME, Lab
from acceptance.placement.faults import BROKEN, PYTHON
from acceptance.placement.labs import own_lab
from acceptance.runner import Line

TITLE = "a bad node is left out of its cell, named in status, and excluded from the next job"

BAD = "c3"
DEPLOYMENT = "spare"
SPEC = f"""
schema: exaslurm/v1
deployment: {DEPLOYMENT}
site: lab
time_limit: "00:20:00"
workers: {{nodes: 4, min_nodes: 3}}
ray: false
models:
  - name: toy
    engine: {{kind: simulated}}
    shards: [{{name: base, replicas: 4}}]
"""
FINDING = "limits.nofile: 1024 (hard limit)"
SLURMD = "$(pgrep -x slurmd)"


BROKEN_SITE = f"""
schema: exaslurm/site/v1
name: broken
extends: lab
python: {PYTHON}
"""
BROKEN_SPEC = SPEC.replace(f"deployment: {DEPLOYMENT}", "deployment: broken").replace(
    "site: lab", "site: broken"
).replace("nodes: 4, min_nodes: 3", "nodes: 5, min_nodes: 4")  # fmt: skip


def run(line: Line) -> None:
    lab = own_lab(line, "spare", nodes=6)
    check(line, lab)
    never_started(line, lab)


def check(line: Line, lab: Lab) -> None:
    """``lab`` has five nodes in the partition of the workers, of which four are asked for."""
    break_node(line, lab)
    done = lab.submit(line, SPEC, DEPLOYMENT)
    line.ran("the cell comes up although a node is bad", done)
    (cell,) = lab.status(DEPLOYMENT)["cells"]
    states = {node["node"]: node for node in cell["nodes"]}
    line.check("the bad node is in the job", BAD in states, ", ".join(states))
    bad = states.get(BAD, {})
    line.check("status: it is excluded", bad.get("state") == "excluded", bad.get("state"))
    line.check("status: by which check and value", bad.get("cause") == FINDING, bad.get("cause"))
    where = places(cell)
    line.check("three nodes carry all replicas", BAD not in where and len(where) == 3, where)
    line.check("every replica is ready", cell["replicas_ready"] == 4, cell["replicas_ready"])
    text = lab.exaslurm("status", DEPLOYMENT).stdout
    line.check("status as text says so", f"note: {BAD} is left out: {FINDING}" in text)
    looked_at(line, lab)
    line.ran("stop", lab.exaslurm("stop", DEPLOYMENT, timeout_s=240))

    done = lab.submit(line, SPEC, DEPLOYMENT)
    line.ran("the next submission comes up", done)
    line.check("submit says which node it does without", f"without {BAD} until" in done.stderr)
    (cell,) = lab.status(DEPLOYMENT)["cells"]
    where = places(cell)
    line.check("four nodes carry it, the bad one is not among them", len(where) == 4, where)
    names = [node["node"] for node in cell["nodes"]]
    line.check("the bad node is not in the job", BAD not in names, ", ".join(names))
    words = lab.on("login", "scontrol", "show", "job", cell["job"]["id"]).stdout.split()
    excluded = [word for word in words if word.startswith("ExcNodeList=")]
    line.check("Slurm was told so", excluded[-1:] == [f"ExcNodeList={BAD}"], " ".join(excluded))


def never_started(line: Line, lab: Lab) -> None:
    """A node where not even our Python starts is found out at once, not at the deadline (180 s)."""
    line.ran("exaslurm stop", lab.exaslurm("stop", DEPLOYMENT, timeout_s=240))
    line.ran(f"Python is broken on {BAD}", lab.sh(BROKEN, user="root"))
    lab.write(f"{HOME}/.config/exaslurm/sites/broken.yaml", BROKEN_SITE)
    begin = time.monotonic()
    done = lab.submit(line, BROKEN_SPEC, "broken")
    line.ran("the cell comes up although a node never starts", done)
    line.at_most("in", time.monotonic() - begin, 90)
    (cell,) = lab.status("broken")["cells"]
    where = places(cell)
    line.check("four nodes carry it", BAD not in where and cell["replicas_ready"] == 4, where)
    found = lab.sh("cat ~/exaslurm/broken/excluded/c000.json").stdout
    reasons = {item["node"]: item["reason"] for item in json.loads(found)["nodes"]}
    wanted = "its task ended before it reported: Exited with exit code 1"
    line.check("the next job will do without it", wanted in reasons.get(BAD, ""), reasons)


def looked_at(line: Line, lab: Lab) -> None:
    """Doctor, beside what runs, finds the same."""
    done = lab.exaslurm("doctor", "--deployment", DEPLOYMENT, "--json", timeout_s=300)
    hosts = {host["host"]: host["checks"] for host in json.loads(done.stdout)["hosts"]}
    failed = [
        f"{host} {check['id']}: {check['value']}"
        for host, checks in hosts.items()
        for check in checks
        if check["outcome"] == "fail"
    ]
    line.check("doctor --deployment: all nodes answer", len(hosts) == 6, ", ".join(hosts))
    line.check("doctor --deployment: the same finding", failed == [f"{BAD} {FINDING}"], failed)


def break_node(line: Line, lab: Lab) -> None:
    """What slurmd starts there may open 1,024 files, as long as the lab is up."""
    done = lab.sh(f"prlimit --pid {SLURMD} --nofile=1024:1024", host=BAD, user="root")
    line.ran(f"{BAD} is made bad", done)


def places(cell: dict[str, Any]) -> list[str]:
    return sorted({replica["node"] for replica in cell["replicas"]})
