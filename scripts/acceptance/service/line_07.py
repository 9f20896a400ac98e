"""The shared file system hangs, then it is away: nobody notices, and all goes on after it."""

from __future__ import annotations

import concurrent.futures
import json
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from acceptance.lab import HOME, ROOT, Lab, until
from acceptance.runner import Line, LineFailed
from acceptance.service.kit import NODES, big_lab, engines
from acceptance.service.turns import load, report, submissions

TITLE = "the shared file system hung for 60 s, then unmounted for 60 s: no failed request"

DEPLOYMENT = "away"
RUN_DIR = f"{HOME}/exaslurm/{DEPLOYMENT}"
SPEC = f"""
schema: exaslurm/v1
deployment: {DEPLOYMENT}
site: lab
time_limit: "02:00:00"
ray: false
workers: {{nodes: 2, nodes_per_cell: 1}}
models:
  - name: pretend
    engine: {{kind: simulated}}
    shards: [{{name: base, replicas: 4}}]
"""
REPLICAS = 4
LASTS_S = 60.0
UID = 6001
HOSTS = ("login", *(f"c{number}" for number in range(1, NODES + 1)))


def run(line: Line) -> None:
    here = big_lab(line)
    line.cleanups.append(lambda: fs(here, "restore"))
    line.ran("submitted", here.submit(line, SPEC, DEPLOYMENT))
    before = processes(here)
    with load(line, here, DEPLOYMENT, "pretend", concurrency=8) as running:
        time.sleep(5)  # of load on all of it
        for action, undo in (("hang", "resume"), ("remove", "restore")):
            fs(here, action)
            begun = time.monotonic()
            seen = watch(here, LASTS_S)
            fs(here, undo)
            lasted_s = time.monotonic() - begun
            line.at_least(f"fs {action} on {len(HOSTS)} hosts lasted", lasted_s, LASTS_S, "s")
            waiting(line, action, seen)
            right(line, here, f"after {undo}")
        line.check("all processes are those of before", processes(here) == before,
                   f"{before} {processes(here)}")  # fmt: skip
        line.ran("a successor is asked for", here.exaslurm("drain", DEPLOYMENT, "cell", "c000"))

        def rolled() -> bool:
            turns = submissions(here, DEPLOYMENT)
            return (
                turns["c000"]["state"] == "stopped"
                and (turns.get("c000.2") or {}).get("served_s") is not None
            )

        line.need("roll-over goes on after it", until(rolled, 300, 2.0))
    report(line, running.result(), asked=REPLICAS)


def fs(here: Lab, action: str) -> None:
    """Do something to the shared file system of all hosts."""
    with concurrent.futures.ThreadPoolExecutor(len(HOSTS)) as pool:
        done = list(pool.map(lambda host: _lab("fs", action, "--name", here.name, host), HOSTS))
    failed = [item.stderr for item in done if item.returncode]
    if failed:
        raise LineFailed(f"fs {action}: {failed}")


def _lab(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [str(ROOT / "scripts/lab"), *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120)


def watch(here: Lab, seconds: float) -> list[dict[str, Any]]:
    """What waits for the file system meanwhile, on each host."""
    program = (ROOT / "scripts/acceptance/clients/waiting.py").read_text()
    given = json.dumps({"uid": UID, "seconds": seconds})

    def one(host: str) -> dict[str, Any]:
        words = (f"{here.env}/bin/python", "-", given)
        done = here.on(host, *words, user="root", text=program, timeout_s=seconds + 60)
        if done.returncode:
            raise LineFailed(f"{host}: {done.stderr[-500:]}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    with concurrent.futures.ThreadPoolExecutor(len(HOSTS)) as pool:
        return list(pool.map(one, HOSTS))


def waiting(line: Line, action: str, seen: Sequence[dict[str, Any]]) -> None:
    """At most the one thread for files of each process waits; of init and engines none does."""
    found = [item for host in seen for item in host["processes"].values()]
    kinds = Counter(item["kind"] for item in found)
    states = sum((Counter(host["states"]) for host in seen), Counter[str]())
    line.note(
        f"processes seen: {', '.join(f'{n} {kind}' for kind, n in sorted(kinds.items()))}; "
        f"states of threads that waited for it: {dict(states) or 'none waited'}"
    )
    for kind in sorted(kinds):
        of_kind = [item for item in found if item["kind"] == kind]
        most = max(item["most"] for item in of_kind)
        names = sorted({name for item in of_kind for name in item["names"]})
        limit = 0 if kind in ("init", "engine") else 1
        text = f"{most}" + (f" ({', '.join(names)})" if names else "")
        line.check(f"fs {action}: threads that wait in a {kind}: at most {limit}",
                   most <= limit, text)  # fmt: skip


def processes(here: Lab) -> dict[str, Any]:
    """Engines, router and supervisor by pid."""
    found: dict[str, Any] = dict(engines(here, DEPLOYMENT))
    for name in ("endpoint", "supervisor"):
        data = json.loads(here.on("login", "cat", f"{RUN_DIR}/{name}.json").stdout)
        found[name] = data["pid"] if name == "supervisor" else data["routers"][0]["pid"]
    return found


def right(line: Line, here: Lab, when: str) -> None:
    """The records are kept again, and say what is."""
    begun = time.monotonic()
    first = sequence(here)

    def kept() -> bool:
        now = sequence(here)
        return all(now[cell] > first[cell] for cell in first)

    line.need(f"{when}: every cell writes its record again", until(kept, 60, 0.5),
              f"after {time.monotonic() - begun:.1f} s")  # fmt: skip
    status = here.status(DEPLOYMENT)
    line.check(f"{when}: status", status["phase"] == "ready" and
               status["replicas_ready"] == REPLICAS,
               f"{status['phase']}, {status['replicas_ready']} of {REPLICAS}")  # fmt: skip


def sequence(here: Lab) -> dict[str, int]:
    """The numbers of the records."""
    text = here.sh(f"cat {RUN_DIR}/registry/c*.json | tr -d '\\n'").stdout
    decoder, found, at = json.JSONDecoder(), {}, 0
    while at < len(text):
        item, at = decoder.raw_decode(text, at)
        found[item["cell"]] = item["seq"]
    return found
