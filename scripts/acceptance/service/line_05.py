"""Killed at any of its steps, a supervisor leaves what the next one brings to the same end."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from typing import Any

from acceptance.lab import HOME, ROOT, Lab
from acceptance.runner import Line, LineFailed
from acceptance.service.kit import big_lab, is_ready
from acceptance.service.struck import steps, supervise

TITLE = "supervisor killed at every effect: the same end, no job twice, none lost"

DEPLOYMENT = "killed"
SPEC = f"""
schema: exaslurm/v1
deployment: {DEPLOYMENT}
site: lab
time_limit: "02:00:00"
workers: {{nodes: 1}}
ray: false
gateway: {{home: service}}
models:
  - name: toy
    engine: {{kind: simulated}}
    shards: [{{name: base, replicas: 2}}]
"""
RUN_DIR = f"{HOME}/exaslurm/{DEPLOYMENT}"
# Its bookkeeping is killed once before and once after; Slurm's and the cells' commands each time.
OFTEN = ("sbatch", "scancel", "drain", "stop")


def run(line: Line) -> None:
    in_memory(line)
    lab = big_lab(line)
    line.ran("submitted", lab.submit(line, SPEC, DEPLOYMENT))
    line.need("it serves", is_ready(lab, DEPLOYMENT))
    for name, event in (("the job is cancelled", cancel), ("a successor is asked for", ask)):
        on_slurm(line, lab, name, event)


def in_memory(line: Line) -> None:
    """Every step of every event, on a cluster in memory."""
    words = ["scripts/test", "--quick", "-p", "no:cacheprovider"]
    words += ["tests/supervisor/test_faults.py", "tests/rollout/test_faults.py"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=1800)
    last = done.stdout.strip().splitlines()[-1:]
    line.check("killed at every step, in memory", done.returncode == 0, *last)


def on_slurm(line: Line, lab: Lab, name: str, event: Any) -> None:
    """The same on a real Slurm: each kind of step in turn."""
    event(lab)
    whole = supervise(lab, DEPLOYMENT)
    line.ran(f"{name}: without a kill", whole)
    expect(line, lab, name)
    killed = 0
    for step in steps_to_try(whole.stdout):
        event(lab)
        done = supervise(lab, DEPLOYMENT, step)
        if done.returncode == 0:
            continue  # it did not come to that step again
        if done.returncode not in (-signal.SIGKILL, 128 + signal.SIGKILL):
            raise LineFailed(f"{name}, {step}: {done.stderr[-2000:]}")
        killed += 1
        after = supervise(lab, DEPLOYMENT)
        if after.returncode != 0 or not expect(line, lab, f"{name}, killed {step}", quiet=True):
            line.check(f"{name}, killed {step}", False, after.stderr[-500:])
    line.at_least(f"{name}: killed, and brought to the same end", killed, 8)


def steps_to_try(text: str) -> list[tuple[str, int]]:
    """Of what a whole run printed: every effect, and of the bookkeeping the first of its kind."""
    return [
        (name, nth)
        for name, nth in steps(text)
        if nth == 1 or (name.split()[1] in OFTEN and nth <= 3)
    ]


def expect(line: Line, lab: Lab, name: str, *, quiet: bool = False) -> bool:
    """One job runs, that of the newest turn; every job that Slurm has seen is written down once."""
    jobs = lab.jobs()
    turns = submissions(lab)
    live = [item for item in turns if item["state"] == "submitted"]
    names = Counter(
        lab.sh("scontrol show jobs -o | grep -o 'JobName=exa-killed-[^ ]*'").stdout.split()
    )
    leaders = {job.partition("+")[0] for job in jobs}
    ok = (
        len(live) == 1
        and leaders == {live[0]["job_id"]}
        and all(count <= 2 for count in names.values())  # a het job's two components
        and all(item["state"] in ("submitted", "stopped") for item in turns)
        and len({item["job_id"] for item in turns}) == len(turns)
    )
    if not (quiet and ok):
        line.check(f"{name}: one job, no other, each once", ok, f"{len(turns)} turns; {jobs}")
    return ok


def submissions(lab: Lab) -> list[dict[str, Any]]:
    """Those of the newest generation."""
    find = f"cd {RUN_DIR}/gen; cd $(ls | sort -n | tail -1)/submissions"
    text = lab.sh(f"{find}; cat *.json | tr -d '\\n'").stdout
    decoder, found, at = json.JSONDecoder(), [], 0
    while at < len(text):
        item, at = decoder.raw_decode(text, at)
        found.append(item)
    return found


def cancel(lab: Lab) -> None:
    """The job of a new generation ends: jobs that fail one after the other are tried later and
    later."""
    if len(submissions(lab)) > 1:
        for words in (("stop", DEPLOYMENT), ("submit", f"{DEPLOYMENT}.yaml", "--wait")):
            done = lab.exaslurm(*words, timeout_s=240)
            if done.returncode:
                raise LineFailed(f"{words[0]}: {done.stderr}")
        supervise(lab, DEPLOYMENT)  # which remembers that it serves
    for ident in lab.jobs():
        lab.on("login", "scancel", ident.partition("+")[0])
    deadline = time.monotonic() + 60
    while lab.jobs():
        if time.monotonic() > deadline:
            raise LineFailed("a cancelled job does not end")
        time.sleep(0.5)


def ask(lab: Lab) -> None:
    """Somebody wants the cell elsewhere."""
    turn = max(submissions(lab), key=lambda item: item["created_s"])["cell"]
    done = lab.exaslurm("drain", DEPLOYMENT, "cell", turn)
    if done.returncode:
        raise LineFailed(f"drain: {done.stderr}")
