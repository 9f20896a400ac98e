"""Parts that no request needs: Ray, heads, agents, controllers, supervisors, Slurm itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from acceptance.lab import Lab, until
from acceptance.runner import Line
from acceptance.service import kit, strikes

TITLE = "without Ray on one node, then on none; everything but the engines killed in turn"

NAME = "robust"
NODES = ("c1", "c2", "c3", "c4", "c5", "c6")
# With the true number of cores, and with little patience for Ray.
SITE = """\
timeouts: {{ray_s: 60}}
node_kinds:
  cpu: {{cpus: {cpus}, mem_gib: {mem_gib}}}
  gpu: {{cpus: {cpus}, mem_gib: {mem_gib}}}
"""
SPEC = """\
schema: exaslurm/v1
deployment: {name}
site: robust
workers: {{nodes: 4}}
models:
  - name: pretend
    engine: {{kind: simulated}}
    shards: [{{name: base, replicas: 4}}]
"""
WHY = "Ray is forbidden on this node"
LOAD = ("--concurrency=8", "--rate=40", "--max-tokens=16")
# Each fault, and whether streams that have begun and engines are not to notice it.
KILLS = (
    ("kill-ray", ()),
    ("kill-controller", ()),
    ("kill-agent", ()),
    ("kill-head", ()),
    ("kill-router", ()),
    ("kill-supervisor", ()),
    ("restart-slurmctld", ("--for=15",)),
)


def run(line: Line) -> None:
    prove(line, kit.big_lab(line))
    prove(line, kit.big_lab(line, profile="real"), tracking="proctrack/cgroup")


def prove(line: Line, here: Lab, *, tracking: str | None = None) -> None:
    if tracking is not None:
        shown = here.sh("scontrol show config | awk '/^ProctrackType/ {print $3}'").stdout.strip()
        line.check("processes are tracked by", shown == tracking, shown)
    cpus, mem_mib = here.sh("sinfo --noheader --nodes=c2 --format='%c %m'").stdout.split()
    kit.site(here, "robust", SITE.format(cpus=cpus, mem_gib=int(mem_mib) // 1024))
    without_ray(line, here, ("c3",))
    without_ray(line, here, NODES)
    submit(line, here)
    line.need("Ray is complete", until(lambda: ray(here)["state"] == "complete", 180, 1))
    kills(line, here, KILLS)
    line.ran("stop", here.exaslurm("stop", NAME, timeout_s=240))


def submit(line: Line, here: Lab) -> None:
    spec = SPEC.format(name=NAME)
    line.ran("four replicas are ready", here.submit(line, spec, NAME, wait="5m"))


def kills(line: Line, here: Lab, faults: tuple[tuple[str, tuple[str, ...]], ...]) -> None:
    """One after the other; of none do engines or their streams take notice."""
    for fault, options in faults:
        report = strikes.strike(line, here, NAME, fault, *LOAD, *options)
        strikes.engines_stay(line, report)
        strikes.no_failure(line, report)
        if fault != "kill-router":
            line.at_most(f"{fault}: asked again", report["figures"]["reconnected"], 0, "")
        line.note(json.dumps(report))


def without_ray(line: Line, here: Lab, nodes: tuple[str, ...]) -> None:
    """Ray cannot start there; all is served, and status says what is missing and why."""
    what = "no Ray anywhere" if len(nodes) > 1 else f"no Ray on {nodes[0]}"
    with broken_ray(line, here, nodes):
        submit(line, here)
        short = until(lambda: is_short(here), 180, 1)
        found = ray(here)
        nodes_up = f"{found['state']}, {found['nodes_alive']} of {found['nodes_wanted']} nodes"
        line.check(f"{what}: status says that it is not complete", short, nodes_up)
        said = [*([found["cause"]] if found["cause"] else []), *causes(here)]
        line.check(f"{what}: and why", bool(said), "\n".join(["", *said]))
        text = here.exaslurm("status", NAME).stdout
        shown = [row for row in text.splitlines() if "Ray" in row]
        told = any(WHY in row for row in shown)
        line.check(f"{what}: for people, too", told, "\n".join(["", *shown]))
        target = {**here.target(NAME, "pretend"), "max_tokens": 16}
        ended = here.client("load", {**target, "requests": 40, "concurrency": 8})
        line.check(f"{what}: answered of 40 requests", ended["ok"] == 40, json.dumps(ended))
        line.ran("stop", here.exaslurm("stop", NAME, timeout_s=240))


def ray(here: Lab) -> dict[str, Any]:
    """What status says of the cell's Ray."""
    cells = here.status(NAME)["cells"]
    found = cells[-1]["ray"] if cells else None
    unknown = {"state": "unknown", "nodes_alive": 0, "nodes_wanted": 0, "cause": None}
    return dict(found or unknown)


def is_short(here: Lab) -> bool:
    """Whether status says that nodes are missing, and why. Between two tries it starts anew."""
    found = ray(here)
    few = found["nodes_alive"] < found["nodes_wanted"]
    return few and found["state"] != "complete" and bool(causes(here))


def causes(here: Lab) -> list[str]:
    """Why Ray does not run, node by node."""
    nodes = here.status(NAME)["cells"][-1]["nodes"]
    return [
        f"{node['node']}: {node['ray']['cause']}"
        for node in nodes
        if node["ray"] and node["ray"]["cause"]
    ]


@contextmanager
def broken_ray(line: Line, here: Lab, nodes: tuple[str, ...]) -> Iterator[None]:
    """In place of Ray's command, a program that fails, and says why."""
    find = f"find {here.env}/lib -path '*/ray/scripts/scripts.py' -type f"
    program = here.sh(find).stdout.strip()
    line.need("the program to put away", program.startswith("/"), program)
    put = (
        f'echo "raise SystemExit({WHY!r})" >/run/no-ray.py && chmod 644 /run/no-ray.py && '
        f"mount --bind /run/no-ray.py {program}"
    )
    undone = f"while umount {program} 2>/dev/null; do :; done"
    try:
        for node in nodes:
            done = here.sh(put, host=node, user="root")
            line.ran(f"Ray cannot start on {node}", done)
        yield
    finally:
        for node in nodes:
            here.sh(undone, host=node, user="root")
