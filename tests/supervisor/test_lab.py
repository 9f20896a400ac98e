"""Jobs that end, and their successors, with a real Slurm and simulated engines under load."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.kit import wait_for
from tests.slurm.conftest import ProductLab, product_lab
from tests.supervisor.conftest import Cluster

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

HOME = "/exa/shared/home/exa1"
SPEC = """\
schema: exaslurm/v1
deployment: {name}
site: lab
time_limit: {limit}
ray: false
workers: {{nodes: 1}}
models:
  - name: pretend
    engine: {{kind: simulated}}
    shards: [{{name: base, replicas: 2}}]
"""
# Asks again and again, eight at once, until the file is gone; prints how often it got an answer,
# what else it got, and the longest time without an answer.
LOAD = """
import json, os, sys, threading, time, urllib.request
url, key, go = sys.argv[1], open(sys.argv[2]).read().strip(), sys.argv[3]
body = json.dumps({"model": "pretend", "prompt": "on and on", "max_tokens": 8}).encode()
headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
lock, answers, errors, last, gap = threading.Lock(), 0, [], time.monotonic(), 0.0
def ask():
    global answers, last, gap
    while os.path.exists(go):
        try:
            request = urllib.request.Request(url + "/completions", body, headers)
            with opener.open(request, timeout=120) as answer:
                assert json.load(answer)["choices"]
        except Exception as error:
            said = error.read().decode() if hasattr(error, "read") else ""
            with lock:
                errors.append(f"{error} {said}")
        else:
            with lock:
                now = time.monotonic()
                answers, last, gap = answers + 1, now, max(gap, now - last)
        time.sleep(0.1)
threads = [threading.Thread(target=ask) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps({"answers": answers, "errors": errors, "gap_s": gap}))
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[ProductLab]:
    yield from product_lab("wide-24.11")


def ok(lab: ProductLab, *words: str) -> str:
    done = lab.exaslurm(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def start(lab: ProductLab, name: str, limit: str) -> tuple[str, str]:
    """Submit and wait until it serves; its address and the file of a key."""
    path, key = f"{HOME}/{name}.yaml", f"{HOME}/{name}.key"
    lab.on("login", "sh", "-c", f"cat > {path}", text=SPEC.format(name=name, limit=limit))
    ok(lab, "submit", path, "--wait", "--timeout", "120s")
    value = ok(lab, "key", "add", name, "load")
    lab.on("login", "sh", "-c", f"umask 077; cat > {key}", text=value)
    return ok(lab, "endpoint", name).strip(), key


class Load:
    """Constant load from the login node."""

    def __init__(self, lab: ProductLab, url: str, key: str) -> None:
        self.lab, self.go, self.out = lab, f"{HOME}/go", f"{HOME}/load.json"
        program = f"{HOME}/load.py"
        lab.on(
            "login", "sh", "-c", f"cat > {program}; touch {self.go}; rm -f {self.out}", text=LOAD
        )
        words = " ".join(ProductLab.python(program, url, key, self.go))
        lab.sh("login", f"setsid sh -c '{words} >{self.out}.new 2>&1; mv {self.out}.new {self.out}'"
               " >/dev/null 2>&1 </dev/null &")  # fmt: skip

    def end(self) -> dict[str, Any]:
        self.lab.on("login", "rm", "-f", self.go)
        wait_for("the load has ended", lambda: self.lab.run(
            "exec", "login", "--", "test", "-s", self.out).returncode == 0, 130)  # fmt: skip
        found: dict[str, Any] = json.loads(self.lab.on("login", "cat", self.out).splitlines()[-1])
        return found


def submissions(lab: ProductLab, name: str) -> dict[str, dict[str, Any]]:
    directory = f"{HOME}/exaslurm/{name}/gen/1/submissions"
    text = lab.sh("login", f"cd {directory} && for f in *.json; do cat $f; echo; echo ----; done")
    items = [json.loads(part) for part in text.split("----") if part.strip()]
    return {item["cell"]: item for item in items}


def history(lab: ProductLab, name: str) -> list[dict[str, Any]]:
    text = lab.on("login", "cat", f"{HOME}/exaslurm/{name}/history.jsonl")
    return [json.loads(line) for line in text.splitlines()]


def jobs(lab: ProductLab) -> list[str]:
    return lab.on("login", "squeue", "-h", "--me", "-o", "%i").split()


def test_roll_over_under_load(lab: ProductLab) -> None:
    """Jobs of two minutes, twice replaced before their end: no request fails."""
    url, key = start(lab, "roll", "00:02:00")
    load = Load(lab, url, key)
    try:
        fewest = 2
        deadline = time.monotonic() + 420

        def third_serves() -> bool:
            nonlocal fewest
            status = json.loads(ok_or_not(lab, "status", "roll", "--json"))
            fewest = min(fewest, status["replicas_ready"])
            turns = submissions(lab, "roll")
            ended = [turns[name]["state"] for name in ("c000", "c000.2") if name in turns]
            return ended == ["stopped", "stopped"] and turns["c000.3"]["served_s"] is not None

        while not third_serves():
            assert time.monotonic() < deadline, (submissions(lab, "roll"), log_of(lab, "roll"))
            time.sleep(2)
        found = load.end()
    finally:
        lab.on("login", "rm", "-f", load.go)
        stopped = lab.exaslurm("stop", "roll")
    assert found["errors"] == []
    assert found["answers"] > 500
    assert found["gap_s"] < 3.0
    assert fewest == 2
    assert stopped.returncode == 0, stopped.stderr
    assert jobs(lab) == []
    turns = submissions(lab, "roll")
    assert [turns[name]["end"] for name in ("c000", "c000.2")] == ["COMPLETED", "COMPLETED"]
    verbs = [line["verb"] for line in history(lab, "roll") if line.get("cell") == "c000.2"]
    assert verbs == ["submit", "serves", "drain", "stop", "ended"]


def test_a_cancelled_cell_is_replaced(lab: ProductLab) -> None:
    url, key = start(lab, "gone", "00:30:00")
    first = submissions(lab, "gone")["c000"]["job_id"]
    try:
        lab.on("login", "scancel", first)

        def successor_serves() -> bool:
            turns = submissions(lab, "gone")
            return turns.get("c000.2", {}).get("served_s") is not None

        wait_for("a successor serves", successor_serves, 120)
        load = Load(lab, url, key)
        time.sleep(3)  # of load
        found = load.end()
        assert found["errors"] == []
        assert found["answers"] > 20
        status = json.loads(ok(lab, "status", "gone", "--json"))
        assert [cell["name"] for cell in status["cells"]] == ["c000.2"]
        assert (status["replicas_ready"], status["replicas_planned"]) == (2, 2)
        turns = submissions(lab, "gone")
        assert (turns["c000"]["state"], turns["c000"]["end"]) == ("stopped", "CANCELLED")
        mine = jobs(lab)
        assert {ident.partition("+")[0] for ident in mine} == {turns["c000.2"]["job_id"]}
    finally:
        stopped = lab.exaslurm("stop", "gone")
    assert stopped.returncode == 0, stopped.stderr
    left = lab.sh("login", "pgrep -u exa1 -af exaslurm || true")
    assert [line for line in left.splitlines() if "pgrep" not in line] == []


SCRIPT = """#!/bin/bash
#SBATCH --time=00:10:00
#SBATCH --partition=cpu
#SBATCH --mem=100M
#SBATCH --output=/dev/null
exec sleep 600 # --cell c000
"""


def observations(slurm: Any, script: Any, tick: Any) -> list[Any]:
    """What a supervisor relies on, of a Slurm or of what stands for it."""

    def until_running(ident: str) -> Any:
        for _ in range(60):
            job = slurm.jobs([ident])[ident]
            if job.is_running:
                return job
            assert job.is_pending
            tick()
        raise AssertionError("the job does not start")

    job_id = slurm.submit(script, job_name="exa-same-c000-00000000", extra=())
    running = until_running(str(job_id))
    named = slurm.find_by_name("exa-same-c000-00000000")
    slurm.cancel(job_id)
    for _ in range(60):
        over = slurm.jobs([str(job_id)])[str(job_id)]
        if over.is_finished:
            break
        tick()
    slurm.cancel(job_id)
    again = slurm.find_by_name("exa-same-c000-00000000")
    unknown = slurm.jobs(["4000000"])["4000000"]
    return [
        running.state,
        running.name,
        running.end_s - running.start_s,
        [job.id == job_id.id for job in named],
        over.state,
        over.end_s is not None and over.end_s >= running.start_s,
        [(job.id == job_id.id, job.is_finished) for job in again],
        (unknown.state, unknown.is_finished),
        slurm.find_by_name("exa-same-c000-ffffffff"),
    ]


def test_the_cluster_in_memory_is_like_this_one(lab: ProductLab, tmp_path: Path) -> None:
    code = inspect.getsource(observations) + (
        "import json, pathlib, sys, time\n"
        "from typing import Any\n"
        "from exaslurm.slurm.client import Slurm\n"
        "found = observations(Slurm(), pathlib.Path(sys.argv[1]), lambda: time.sleep(0.5))\n"
        "print(json.dumps(found))\n"
    )
    path = f"{HOME}/same.sbatch"
    lab.on("login", "sh", "-c", f"cat > {path}", text=SCRIPT)
    real = lab.eval("from __future__ import annotations\n" + code, path)

    script = tmp_path / "same.sbatch"
    script.write_text(SCRIPT)
    cluster = Cluster()

    def tick() -> None:
        cluster.now_s += 5

    fake = observations(cluster, script, tick)
    assert json.loads(json.dumps(fake)) == real
    assert real[:3] == ["RUNNING", "exa-same-c000-00000000", 600.0]


def ok_or_not(lab: ProductLab, *words: str) -> str:
    """The result, whatever the exit code."""
    return lab.exaslurm(*words).stdout


def log_of(lab: ProductLab, name: str) -> str:
    return lab.sh("login", f"tail -n 40 {HOME}/exaslurm/{name}/gateway/router.log")
