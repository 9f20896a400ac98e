"""Two real engines of one core each: where all their processes run, and who notices a change."""

from __future__ import annotations

import json
import time
from typing import Any

from acceptance.lab import HOME, Lab, lab, until
from acceptance.runner import Line
from acceptance.tiny import tiny_model

TITLE = "two real engines run on the planned cores, and a changed mask is reported at once"

NAME = "pinned"
MODEL = "tiny"
# An agent reports every five seconds; `status` itself takes a moment.
HEARTBEAT_S = 5.0
STATUS_S = 2.0
# Both engines on one node of two CPUs: none is left for agent and Ray there.
SITE = """\
schema: exaslurm/site/v1
name: pinned
extends: lab
node_kinds:
  cpu: {{cpus: {cpus}, mem_gib: {mem_gib}}}
  gpu: {{cpus: {cpus}, mem_gib: {mem_gib}}}
service: {{cores: 0}}
"""
SPEC = """\
schema: exaslurm/v1
deployment: {name}
site: pinned
workers: {{nodes: 1}}
models:
  - name: {model}
    source: {{path: {path}}}
    per_replica: {{cores: 1, mem_gib: 2}}
    engine: {{args: {{max-model-len: 2048}}}}
    shards: [{{name: base, replicas: 2}}]
"""
# Every process that came from a pid, as the kernel shows it: its own line, and all its threads'.
TREE = """\
import json, os, pathlib, sys

def field(path, name):
    for line in path.read_text().splitlines():
        if line.startswith(name + ":"):
            return line.split(":", 1)[1].strip()

parents, found = {}, []
for path in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        parents.setdefault(int(field(path / "status", "PPid")), []).append(int(path.name))
    except (OSError, TypeError):
        pass
todo = [int(sys.argv[1])]
while todo:
    pid = todo.pop()
    todo += parents.get(pid, [])
    path = pathlib.Path("/proc") / str(pid)
    threads = {field(p / "status", "Cpus_allowed_list") for p in (path / "task").iterdir()}
    found.append({
        "pid": pid, "name": field(path / "status", "Name"),
        "cpus": field(path / "status", "Cpus_allowed_list"), "threads": sorted(threads),
        "mems": field(path / "status", "Mems_allowed_list"),
    })
print(json.dumps(found))
"""


def run(line: Line) -> None:
    prove(line, lab(line, profile="real"))


def prove(line: Line, here: Lab) -> None:
    cpus, mem_mib = here.sh("sinfo --noheader --nodes=c2 --format='%c %m'").stdout.split()
    line.need("CPUs of a node are at least two", int(cpus) >= 2, cpus)
    site = SITE.format(cpus=cpus, mem_gib=int(mem_mib) // 1024)
    here.write(f"{HOME}/.config/exaslurm/sites/pinned.yaml", site)
    spec = SPEC.format(name=NAME, model=MODEL, path=tiny_model(line, here))
    line.ran("two replicas are ready", here.submit(line, spec, NAME, wait="10m"))
    replicas = replicas_of(here)
    line.need("both are on one node", len({r["node"] for r in replicas}) == 1, replicas[0]["node"])
    planned = [tuple(replica["cores"]) for replica in replicas]
    line.need(
        "each has a core of its own",
        all(len(cores) == 1 for cores in planned) and len(set(planned)) == 2,
        planned,
    )
    for replica in replicas:
        on_planned_cores(line, here, replica)
    seen = until(lambda: all(r["cores_actual"] for r in replicas_of(here)), 2 * HEARTBEAT_S)
    line.check("status has seen where they run", seen)
    for replica in replicas_of(here):
        as_reported(line, replica)
    line.check("status has nothing to complain of", complaint(here) is None, complaint(here) or "")
    change_mask(line, here, replicas[0], to=planned[1][0])


def on_planned_cores(line: Line, here: Lab, replica: dict[str, Any]) -> None:
    """All processes of an engine, from /proc on its node."""
    core = str(replica["cores"][0])
    tree = tree_of(here, replica)
    where = "; ".join(f"{p['pid']} {p['name']} {p['cpus']}" for p in tree)
    ok = bool(tree) and all(p["cpus"] == core and p["threads"] == [core] for p in tree)
    line.check(f"{replica['id']}: Cpus_allowed_list of all its processes is {core}", ok, where)


def as_reported(line: Line, replica: dict[str, Any]) -> None:
    cores, granted, actual = (replica[n] for n in ("cores", "cores_granted", "cores_actual"))
    ok = cores == actual and set(cores) <= set(granted) and replica["off_plan"] is None
    line.check(
        f"{replica['id']}: status: planned, granted, actual", ok, f"{cores} {granted} {actual}"
    )


def change_mask(line: Line, here: Lab, replica: dict[str, Any], to: int) -> None:
    """As somebody else would, and back."""
    node, pid, planned = replica["node"], str(replica["pid"]), replica["cores"][0]
    done = here.on(node, "taskset", "-p", "-c", str(to), pid, user="root")
    began = time.monotonic()
    line.ran(f"taskset moves process {pid} to CPU {to}", done)
    reported = until(lambda: complaint(here) is not None, 60, 0.1)
    took_s = time.monotonic() - began
    line.need("status reports it", reported, complaint(here) or "no")
    line.at_most("it took", took_s, HEARTBEAT_S + STATUS_S)
    told = complaint(here) or ""
    line.check("it names replica, plan and process", all(
        word in told
        for word in (replica["id"], f"planned for CPUs {planned}", f"process {pid}", str(to))
    ), told)  # fmt: skip
    changed = next(r for r in replicas_of(here) if r["id"] == replica["id"])
    line.check("the actual cores are shown", to in changed["cores_actual"], changed["cores_actual"])
    text = here.exaslurm("status", NAME).stdout
    line.check("the text of status says so too", "off plan" in text and "note: " in text)
    line.check("it goes on serving", changed["state"] == "ready", changed["state"])
    done = here.on(node, "taskset", "-p", "-c", str(planned), pid, user="root")
    line.ran("taskset moves it back", done)
    back = until(lambda: complaint(here) is None, HEARTBEAT_S + STATUS_S, 0.1)
    line.check("and status has nothing to complain of any more", back)


def replicas_of(here: Lab) -> list[dict[str, Any]]:
    (cell,) = here.status(NAME)["cells"]
    return sorted(cell["replicas"], key=lambda replica: str(replica["id"]))


def complaint(here: Lab) -> str | None:
    """The first cause of the deployment."""
    found: str | None = here.status(NAME)["cause"]
    return found


def tree_of(here: Lab, replica: dict[str, Any]) -> list[dict[str, Any]]:
    words = (f"{here.env}/bin/python", "-", str(replica["pid"]))
    done = here.on(replica["node"], *words, user="root", text=TREE)
    found: list[dict[str, Any]] = json.loads(done.stdout or "[]")
    return found
