"""Replicas come and go with the load: a recorded load in simulation, a real deployment up and down.

The simulation is ``benchmarks/autoscale``: the shared Azure trace at ten times its speed over
simulated engines, with the policy and the division over cells that the supervisor uses, for
start-up times of 15, 30 and 60 s, which are judged, and of 5 s, which is only told. What a load
peak is, and what the oracle is, is defined in ``benchmarks/scaling.py``.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import json
import os
import subprocess
import time
from typing import Any

from acceptance.lab import HOME, ROOT, Lab, lab, until
from acceptance.runner import Line
from acceptance.service.turns import history, load, submissions

TITLE = "autoscale: promise kept, no flapping, 1.3x of an oracle; down to zero, and awake again"

JUDGED_S = (15.0, 30.0, 60.0)
RATIO = 1.3
SPEC = """
schema: exaslurm/v1
deployment: swing
site: lab
time_limit: "01:00:00"
ray: false
workers: {nodes: 2, nodes_per_cell: 1}
autoscale: {max: 4, cooldown_s: 15, scale_to_zero: true, idle_s: 45}
models:
  - name: pretend
    engine: {kind: simulated, args: {max-num-seqs: 2, decode-tokens-per-s: 20, load-s: 3}}
    per_replica: {cores: 1}
    max_replicas_per_node: 2
    slo: {ttft_p95_s: 2}
    shards: [{name: base, replicas: 1}]
"""
SHARD = "pretend:base"


def run(line: Line) -> None:
    simulated(line)
    processes(line)
    real(line)


# --- the recorded load -------------------------------------------------------------------------


def simulated(line: Line) -> None:
    done = python("benchmarks/autoscale", timeout_s=3600)
    for text in done.stderr.splitlines():
        line.note(text)
    line.need("the simulation ran", done.returncode == 0, done.stderr[-300:] or "yes")
    found = json.loads(done.stdout)
    for one in found["runs"]:
        if one["start_s"] not in JUDGED_S:
            line.note(f"start-up {one['start_s']:g} s (told only): ratio {one['ratio']}")
            continue
        name = f"start-up {one['start_s']:g} s"
        line.at_most(f"{name}: TTFT P95", one["ttft_p95_s"], 2.0)
        line.at_most(
            f"{name}: direction changes in {found['load_peaks']} load peaks",
            one["direction_changes"],
            found["load_peaks"],
            "",
        )
        line.at_most(f"{name}: direction changes in any one peak", one["most_in_one_peak"], 1, "")
        line.at_most(f"{name}: replica-hours, of the oracle's", one["ratio"], RATIO, "x")
        line.at_most(f"{name}: replicas moved without need", one["needless_moves"], 0, "")
    zero = found["zero"]
    line.check("simulated: asleep when idle", zero["asleep_after_s"] is not None, zero)
    line.at_most("simulated: a held request, start-up included",
                 zero["held_request_ttft_s"], zero["start_s"] + 5)  # fmt: skip


def python(*words: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """A program of this clone, in the development environment."""
    venv = os.environ.get("EXASLURM_VENV", str(ROOT / ".venv"))
    return subprocess.run(
        [f"{venv}/bin/python", *words], cwd=ROOT, capture_output=True, text=True, timeout=timeout_s
    )


# --- real processes on simulated nodes ----------------------------------------------------------


def processes(line: Line) -> None:
    """Real supervisor, controllers and router, ten times as fast."""
    done = python("-m", "pytest", "-q", "tests/autoscale/test_fleet.py", timeout_s=600)
    what = "simulated nodes: 1 to 4 replicas, 2 cells, to zero, awake, nothing lost"
    line.check(what, done.returncode == 0, done.stdout.splitlines()[-1] if done.stdout else "")


# --- a real deployment -------------------------------------------------------------------------


def real(line: Line) -> None:
    here = lab(line)
    line.ran("submitted", here.submit(line, SPEC, "swing"))
    line.check("one cell at first", set(submissions(here, "swing")) == {"c000"},
               ", ".join(submissions(here, "swing")))  # fmt: skip
    began = time.monotonic()
    with load(line, here, "swing", "pretend", concurrency=10, max_tokens=60) as running:
        full = until(lambda: wanted(here) == 4 and serving(here) == 4, 180)
        line.check("up to 4 replicas in 2 cells under load", full, levels(here))
        line.note(f"all 4 serve {time.monotonic() - began:.0f} s after the load began")
        time.sleep(20)  # load goes on at full strength: nothing may change
        line.check("no change while the load stays", wanted(here) == 4, levels(here))
    found = running.result(timeout=180)
    failed = [*found["not_begun"], *found["begun"]]
    line.check("requests that failed: 0", not failed, failed[:3] or f"{found['answers']} answered")
    line.check("down when the load is over, and to zero when nobody asks",
               until(lambda: wanted(here) == 0, 240), levels(here))  # fmt: skip
    line.check("no job is left", until(lambda: len(cell_jobs(here)) == 0, 120), cell_jobs(here))
    count = [int(item["replicas"]) for item in scaled(here)]
    line.note(f"replicas wanted, one after the other: {[1, *count]}")
    ways = [1 if b > a else -1 for a, b in itertools.pairwise([1, *count]) if a != b]
    turns = sum(a != b for a, b in itertools.pairwise(ways))
    line.at_most("direction changes for one load peak", turns, 1, "")
    woken(line, here)


def woken(line: Line, here: Lab) -> None:
    target = here.target("swing", "pretend")
    page = ask(here, target, "/models", None)
    names = [card["id"] for card in page["data"]]
    line.check("the model is listed while nothing runs", "pretend" in names, names)
    body = {"model": "pretend", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        began = time.monotonic()
        asked = [pool.submit(ask, here, target, "/chat/completions", body) for _ in range(3)]
        told = until(lambda: wanted(here) > 0, 30, 0.2)
        line.check("the supervisor is woken", told, f"after {time.monotonic() - began:.1f} s")
        answers = [one.result(timeout=240) for one in asked]
    whole = all("choices" in answer for answer in answers)
    line.check("the held requests were answered", whole, answers[:1] if not whole else "3 of 3")
    line.note(f"held for {time.monotonic() - began:.0f} s: Slurm, the cell, and 3 s of loading")


def ask(here: Lab, target: dict[str, str], path: str, body: Any) -> Any:
    words = f'curl -sS --max-time 230 -H "Authorization: Bearer $(cat {target["key_file"]})"'
    if body is not None:
        words += f" -H 'Content-Type: application/json' -d '{json.dumps(body)}'"
    done = here.sh(f"{words} {target['base_url']}{path}", timeout_s=240)
    return json.loads(done.stdout or "{}")


def wanted(here: Lab) -> int:
    text = here.on("login", "cat", f"{HOME}/exaslurm/swing/scale.json").stdout
    return int(json.loads(text or "{}").get("replicas", {}).get(SHARD, -1))


def serving(here: Lab) -> int:
    status = here.status("swing")
    return sum(item["state"] == "ready" for cell in status["cells"] for item in cell["replicas"])


def levels(here: Lab) -> str:
    return f"{wanted(here)} wanted, {serving(here)} serve"


def cell_jobs(here: Lab) -> list[str]:
    done = here.on("login", "squeue", "--noheader", "--me", "--format=%j")
    return [name for name in done.stdout.split() if name.startswith("exa-swing-c")]


def scaled(here: Lab) -> list[dict[str, Any]]:
    return [item for item in history(here, "swing") if item["verb"] == "scale"]
