"""Leaders that die, and leaders that come back from a pause."""

from __future__ import annotations

import concurrent.futures
import json
import os
import subprocess
import time
from collections import Counter
from typing import Any

from acceptance.lab import HOME, ROOT, Lab, until
from acceptance.runner import Line, LineFailed
from acceptance.service.kit import forget, is_ready, site
from acceptance.service.struck import supervise
from acceptance.service.turns import submissions

TITLE = "three supervisors as singleton jobs: a leader's node lost; leaders paused inside effects"

SLURMD_TIMEOUT_S = 10.0
# sched_interval of the lab. Slurm looks for silent nodes every third of SlurmdTimeout.
CYCLE_S = 2.0
PING_S = SLURMD_TIMEOUT_S / 3
# A look at a node that is gone takes it so long (MessageTimeout; 10 s where nobody says otherwise).
MESSAGE_S = 5.0
# What a gateway needs from its job's start until it answers, on two busy cores.
START_S = 10.0
SITE = """
node_kinds: {gw: {partition: gw, cpus: 16, mem_gib: 64}}
partitions: {gw: {max_time: 1-00:00:00}}
gateway: {homes: [job, service], kind: gw, cpus: 1, mem_gib: 1}
"""
LED = "led"
SPEC = """
schema: exaslurm/v1
deployment: {name}
site: leaders
time_limit: "02:00:00"
workers: {{nodes: 1}}
ray: false
gateway: {{home: {home}}}
models:
  - name: toy
    engine: {{kind: simulated}}
    shards: [{{name: base, replicas: {replicas}}}]
"""
# Where a supervisor is paused, and what happened to make it act.
PAUSES: tuple[tuple[str, int, str], ...] = (
    ("before sbatch", 1, "replace"),
    ("after sbatch", 1, "replace"),
    ("before submission", 2, "replace"),
    ("before sbatch", 1, "roll-over"),
    ("before drain", 1, "roll-over"),
    ("before stop", 1, "roll-over"),
)


def run(line: Line) -> None:
    lab = leaders_lab(line)
    forget(lab)
    site(lab, "leaders", SITE)
    lost_node(line, lab)
    paused(line, lab)


def leaders_lab(line: Line) -> Lab:
    """Six hosts: one for heads, two for engines, three for gateways."""
    if os.geteuid() != 0:
        raise LineFailed("the lab needs root")
    env = _output([str(ROOT / "scripts/env")])
    name = f"{os.environ.get('EXASLURM_LAB') or 'lab'}-leaders"
    _output(
        [
            *(str(ROOT / "scripts/lab"), "up", "--name", name, "--install", "--nodes", "6"),
            f"--conf=SlurmdTimeout={SLURMD_TIMEOUT_S:g}",
            f"--conf=MessageTimeout={MESSAGE_S:g}",
            "--conf=PartitionName=gw Nodes=c4,c5,c6 MaxTime=1-00:00:00 State=UP",
        ]
    )
    lab = Lab(name, env)
    shown = lab.sh("scontrol show config | grep SlurmdTimeout").stdout
    line.note(f"lab {name}; {' '.join(shown.split())}; software {env}")
    return lab


def _output(argv: list[str]) -> str:
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=3600)
    if done.returncode:
        raise LineFailed(f"{' '.join(argv)} failed")
    return done.stdout.strip()


# --- the leader's node is lost ------------------------------------------------------------------


def lost_node(line: Line, lab: Lab) -> None:
    spec = SPEC.format(name=LED, home="job", replicas=2)
    line.ran("submitted", lab.submit(line, spec, LED))
    line.need("it serves", is_ready(lab, LED))
    first = leader(lab)
    spares = [job for job in lab.status(LED)["gateway_jobs"] if not job["nodes"]]
    line.check("one gateway leads, two wait", len(spares) == 2, f"{len(spares)} wait")
    told = lab.exaslurm("status", LED).stdout
    line.check("status tells it", "wait for its end" in told, _line_of(told, "gateway:"))
    node = first["nodes"][0]
    line.cleanups.append(lambda: power(lab, "start-node", node))
    begin, begin_s = time.monotonic(), time.time()
    power(lab, "kill-node", node)

    def leads() -> bool:
        routers = endpoint(lab)
        return any(r["job_id"] not in ("", first["id"]) and answers(lab, r["url"]) for r in routers)

    came = until(leads, 90)
    took_s = time.monotonic() - begin
    line.need("another gateway leads", came)
    second = leader(lab)
    started_s = second["started_s"] - begin_s
    limit_s = SLURMD_TIMEOUT_S + PING_S + MESSAGE_S + CYCLE_S
    line.at_most("the node is lost -> a standby's job has started", started_s, limit_s)
    line.at_most("the node is lost -> the standby leads", took_s, limit_s + START_S)
    urls = [router["url"] for router in endpoint(lab)]
    line.check("endpoint.json names it and no other", len(urls) == 1, " ".join(urls))
    wanted = until(lambda: len(lab.status(LED)["gateway_jobs"]) == 3, 60)
    line.check("there are two spares again", wanted, len(lab.status(LED)["gateway_jobs"]))
    line.check("the deployment is ready", until(lambda: is_ready(lab, LED), 60))
    lab.exaslurm("stop", LED, timeout_s=240)
    line.check("stop ends all of it", lab.jobs() == [], " ".join(lab.jobs()))
    power(lab, "start-node", node)


def leader(lab: Lab) -> dict[str, Any]:
    """The gateway job that runs, as status shows it."""
    running = [job for job in lab.status(LED)["gateway_jobs"] if job["nodes"]]
    if len(running) != 1:
        raise LineFailed(f"{len(running)} gateway jobs run: {running}")
    found: dict[str, Any] = running[0]
    return found


def endpoint(lab: Lab) -> list[dict[str, Any]]:
    text = lab.on("login", "cat", f"{HOME}/exaslurm/{LED}/endpoint.json").stdout
    found: list[dict[str, Any]] = json.loads(text)["routers"] if text else []
    return found


def answers(lab: Lab, url: str) -> bool:
    words = ("curl", "-s", "-o", "/dev/null", "-m", "2", f"{url}/health")
    return lab.on("login", *words).returncode == 0


def power(lab: Lab, verb: str, node: str) -> None:
    done = subprocess.run(
        [str(ROOT / "scripts/lab"), verb, "--name", lab.name, node], capture_output=True, text=True
    )
    if done.returncode:
        raise LineFailed(f"{verb} {node}: {done.stderr}")


def _line_of(text: str, word: str) -> str:
    return next((row.strip() for row in text.splitlines() if word in row), "not there")


# --- a leader is paused inside an effect, and woken later ----------------------------------------


def paused(line: Line, lab: Lab) -> None:
    """Each pause in a deployment of its own, all at the same time."""
    names = [f"p{number}" for number in range(len(PAUSES))]
    with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        submitted = list(pool.map(lambda name: submit(line, lab, name), names))
    for name, done in zip(names, submitted, strict=True):
        line.ran(f"{name} submitted", done)
    ready = until(lambda: all(is_ready(lab, name) for name in names), 120)
    line.need("all serve", ready)
    with concurrent.futures.ThreadPoolExecutor(2 * len(names)) as pool:
        told = list(pool.map(lambda name, pause: trial(lab, name, pause, pool), names, PAUSES))
    for (step, _, event), (ok, said) in zip(PAUSES, told, strict=True):
        line.check(f"{event}: paused {step}, woken after a take-over", ok, said)


def submit(line: Line, lab: Lab, name: str) -> subprocess.CompletedProcess[str]:
    lab.write(f"{name}.yaml", SPEC.format(name=name, home="service", replicas=1))
    line.cleanups.append(lambda: lab.exaslurm("stop", name, timeout_s=240))
    return lab.exaslurm("submit", f"{name}.yaml")


def job_names(lab: Lab, deployment: str) -> list[str]:
    """Of all jobs that Slurm remembers, once for each component."""
    find = f"scontrol show jobs -o | grep -o 'JobName=exa-{deployment}-[^ ]*' | cut -d= -f2"
    return lab.sh(find).stdout.split()


def trial(
    lab: Lab, name: str, pause: tuple[str, int, str], pool: concurrent.futures.Executor
) -> tuple[bool, str]:
    """Whether it went well, and what there is to say."""
    step, nth, event = pause
    flag = f"{HOME}/{name}.flag"
    supervise(lab, name)  # it is known to serve
    lab.on("login", "rm", "-f", flag)
    begin = submissions(lab, name)
    # Slurm still tells of jobs of an earlier run.
    earlier = set(job_names(lab, name)) - {item["job_name"] for item in begin.values()}
    if event == "replace":
        job = begin["c000"]["job_id"]
        lab.on("login", "scancel", job)
        if not until(lambda: job not in {i.partition("+")[0] for i in lab.jobs()}, 90):
            return False, "a cancelled job does not end"
    else:
        lab.exaslurm("drain", name, "cell", "c000")
    old = pool.submit(supervise, lab, name, (step, nth), "SIGSTOP", flag=flag)
    if not until(lambda: lab.on("login", "test", "-s", flag).returncode == 0, 150):
        return False, f"it did not come to this step: {old.result()}"
    pid = lab.on("login", "cat", flag).stdout.strip()
    try:
        new = supervise(lab, name)
    finally:
        lab.on("login", "kill", "-CONT", pid)
    told = old.result()
    after = supervise(lab, name)
    if any(done.returncode for done in (new, told, after)):
        return False, f"{new.stderr[-300:]} {told.stderr[-300:]} {after.stderr[-300:]}"
    refused = told.stdout.count('"refused"')
    live = [item for item in submissions(lab, name).values() if item["state"] == "submitted"]
    text = lab.sh(f"squeue --noheader --me --format='%i %j' | grep ' exa-{name}-' || true").stdout
    jobs = {row.split()[0].partition("+")[0] for row in text.splitlines()}
    every = [job for job in job_names(lab, name) if job not in earlier]
    strays = len(set(every)) - len(submissions(lab, name))
    most = max(Counter(every).values())
    ok = len(live) == 1 and jobs == {live[0]["job_id"]} and most <= 2 and strays <= 1
    alone = is_ready(lab, name) or lab.status(name)["replicas_ready"] == 1
    said = f"{refused} refused, {strays} stray(s) ended; serves: {','.join(sorted(jobs))}"
    # A job that was to go anyway may be drained or stopped late: whoever takes over knows of it.
    must = step in ("before sbatch", "before submission")
    return ok and alone and (refused > 0 or not must), said
