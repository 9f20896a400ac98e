"""From a clean clone to an answered question, and how long each part takes."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time

from acceptance.demo import run_demo
from acceptance.lab import ROOT, Lab, lab, until
from acceptance.runner import Line, LineFailed

TITLE = "scripts/demo, and bring-up times in a quiet lab (medians of 3)"

ROUNDS = 3
BARE = "/tmp/bare-ray"
NODES = ("c1", "c2", "c3", "c4")


def run(line: Line) -> None:
    here = lab(line)
    here.exaslurm("stop", "hello", timeout_s=240)
    run_demo(line)
    here.exaslurm("stop", "hello", timeout_s=240)
    spec = (ROOT / "examples/lab.yaml").read_text()
    bare, ours, first, last = [], [], [], []
    for number in range(1, ROUNDS + 1):
        line.note(f"round {number}: load of the machine {os.getloadavg()[0]:.1f}")
        bare.append(bare_ray_s(here))
        times = bring_up(line, here, spec)
        ours.append(times["ray"])
        first.append(times["first"])
        last.append(times["all"])
        line.note(f"round {number}: bare Ray {bare[-1]:.1f} s, {json.dumps(times)}")
    line.note(f"bare `ray start` of 4 nodes, median: {statistics.median(bare):.1f} s")
    ratio = statistics.median(ours) / statistics.median(bare)
    line.at_most("Ray of the cell complete, to bare Ray", ratio, 1.3, "x")
    line.at_most("first replica ready", statistics.median(first), 90)
    line.at_most("all three ready", statistics.median(last), 150)


def bare_ray_s(here: Lab) -> float:
    """By hand: the head, then the workers at the same time, until each command is back."""
    address = here.sh("hostname -i", host="c1").stdout.split()[0]
    ray, quiet = f"{here.env}/bin/ray", "--disable-usage-stats --num-cpus=1 --num-gpus=0"
    options = f"{quiet} --object-store-memory=134217728"
    variables = {"RAY_raylet_start_wait_time_s": "120", "PYTHONDONTWRITEBYTECODE": "1"}
    head = f"{ray} start --head --node-ip-address={address} --temp-dir={BARE}"
    begin = time.monotonic()
    try:
        _start(here, "c1", f"{head} --include-dashboard=false {options}", variables)
        workers = " & ".join(
            f"{ROOT}/scripts/lab exec --name {here.name} --user exa1 "
            f"--env RAY_raylet_start_wait_time_s=120 {node} -- "
            f"{ray} start --address={address}:6379 {options} >/dev/null 2>&1"
            for node in NODES[1:]
        )
        done = subprocess.run(["bash", "-c", f"{workers} & wait"], timeout=300)
        if done.returncode:
            raise LineFailed("bare Ray: a worker did not start")
        return time.monotonic() - begin
    finally:
        for node in NODES:
            # Every process of that cluster, and of no other, has its directory in its arguments.
            script = f"kill -9 $(pgrep -u exa1 -f {BARE}); rm -rf {BARE}"
            here.sh(script, host=node, user="root")


def _start(here: Lab, node: str, command: str, variables: dict[str, str]) -> None:
    done = here.sh(command, host=node, variables=variables, timeout_s=300)
    if done.returncode:
        raise LineFailed(f"bare Ray on {node}: {done.stdout}{done.stderr}")


def bring_up(line: Line, here: Lab, spec: str) -> dict[str, float]:
    """Submit, and note when Ray, the first and the last replica are there; then stop."""
    here.write("hello.yaml", spec)
    line.cleanups.append(lambda: here.exaslurm("stop", "hello", timeout_s=240))
    begin = time.monotonic()
    line.ran("submitted", here.exaslurm("submit", "hello.yaml"))
    times: dict[str, float] = {}

    def look() -> bool:
        status = here.status("hello")
        cell = status["cells"][0]
        now = time.monotonic() - begin
        if cell["ray"] and cell["ray"]["state"] == "complete":
            times.setdefault("ray", cell["ray"]["seconds"])
        if status["replicas_ready"] >= 1:
            times.setdefault("first", round(now, 1))
        if status["phase"] == "ready":
            times.setdefault("all", round(now, 1))
        return len(times) == 3

    line.need("ready", until(look, 600, 0.5), json.dumps(times))
    line.ran("stopped", here.exaslurm("stop", "hello", timeout_s=240))
    return times
