"""What dies comes back, and clients do not notice."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from acceptance.lab import HOME, USER, Lab, lab, until
from acceptance.runner import Line
from acceptance.tiny import tiny_model

TITLE = "kill -9 of an engine under load, of gcs_server, of an agent, of the controller"

NAME = "tough"
MODEL = "tiny"
BACK_S = 180.0
REQUESTS = 200
# With proctrack/cgroup the end of a step's task ends every process of the step, and Slurm knows
# how many CPUs there really are.
SITE = """\
schema: exaslurm/site/v1
name: real
extends: lab
node_kinds:
  cpu: {{cpus: {cpus}, mem_gib: {mem_gib}}}
  gpu: {{cpus: {cpus}, mem_gib: {mem_gib}}}
"""
SPEC = """\
schema: exaslurm/v1
deployment: {name}
site: real
workers: {{nodes: 3}}
models:
  - name: {model}
    {engine}
    shards: [{{name: base, replicas: 3}}]
"""
REAL = "source: {{path: {path}}}"
SIMULATED = "engine: {kind: simulated}"


def run(line: Line) -> None:
    here = lab(line, profile="real")
    tracking = here.sh("scontrol show config | awk '/^ProctrackType/ {print $3}'").stdout.strip()
    line.check("processes are tracked by", tracking == "proctrack/cgroup", tracking)
    prove(line, here, REAL.format(path=tiny_model(line, here)), max_tokens=256)


def prove(line: Line, here: Lab, engine: str, *, max_tokens: int) -> None:
    """Kill one part after the other. ``engine`` is REAL or SIMULATED; ``max_tokens`` make the
    requests long enough to be under way when something dies."""
    cpus, mem_mib = here.sh("sinfo --noheader --nodes=c2 --format='%c %m'").stdout.split()
    site = SITE.format(cpus=cpus, mem_gib=int(mem_mib) // 1024)
    here.write(f"{HOME}/.config/exaslurm/sites/real.yaml", site)
    spec = SPEC.format(name=NAME, model=MODEL, engine=engine)
    line.ran("three replicas are ready", here.submit(line, spec, NAME, wait="10m"))
    target = {**here.target(NAME, MODEL), "max_tokens": max_tokens}
    line.need("all of it is up", until(lambda: is_whole(here), 60, 1))
    jobs = here.jobs()
    kill_engine(line, here, target)
    head, worker = head_of(here), next(iter(replicas(here).values()))["node"]
    epoch = ray_epoch(here)
    kill_helper(
        line, here, target, "gcs_server", "gcs_server", head, lambda: ray_epoch(here) > epoch
    )
    line.check("Ray is complete, at a higher epoch", ray_epoch(here) > epoch, ray_epoch(here))
    for name, node in (("the agent of a worker", worker), ("the agent of the head", head)):
        kill_helper(line, here, target, name, "exaslurm[.]agent", node)
    kill_helper(line, here, target, "the controller", "exaslurm[.]controller", head)
    line.check("the jobs are the same", here.jobs() == jobs, " ".join(jobs))


# -- the engine --------------------------------------------------------------------------------


def kill_engine(line: Line, here: Lab, target: dict[str, Any]) -> None:
    before = replicas(here)
    victim = min(before)
    node, pid = before[victim]["node"], before[victim]["pid"]
    family = session(here, node, pid)
    line.check("processes of the engine", len(family) >= 1, len(family))
    tell = f"{HOME}/load-runs"
    here.sh(f"rm -f {tell}")
    with Load(here, {**target, "requests": REQUESTS, "concurrency": 8, "tell": tell}) as load:
        runs = until(lambda: here.sh(f"test -e {tell}").returncode == 0, 300, 0.1)
        killed = here.on(node, "kill", "-9", str(pid), user="root")
        line.check("requests were under way when it died", runs and load.is_running)
    line.ran(f"kill -9 of engine {victim} (pid {pid} on {node})", killed)
    line.check(f"answered of {REQUESTS}", load.ended["ok"] == REQUESTS, json.dumps(load.ended))
    line.at_most("failures of requests not begun", load.ended["not_begun"], 0, "")
    line.check("everything is ready again", until(lambda: is_whole(here), BACK_S, 1))
    after = replicas(here)
    line.check("as another process", after[victim]["pid"] != pid, after[victim]["pid"])
    line.check("its restart is counted", after[victim]["restarts"] == 1, after[victim]["restarts"])
    others = {key: engine_of(item) for key, item in after.items() if key != victim}
    same = all(engine_of(before[key]) == engine for key, engine in others.items())
    line.check("the other engines are the same processes", same)
    left = sorted(set(family) & set(session(here, node, pid)))
    line.check("nothing is left of the dead engine", not left, " ".join(left) or "nothing")
    url = after[victim]["url"]
    served = until(lambda: answers_of(here, url, target) > 0, 60, 1)
    line.check("it serves again: it has answered requests of the router", served)


def session(here: Lab, node: str, pid: int) -> list[str]:
    """Processes of the session that an engine leads."""
    return here.on(node, "ps", "-o", "pid=", "-s", str(pid), user="root").stdout.split()


def engine_of(replica: dict[str, Any]) -> tuple[str, int, int]:
    return replica["node"], replica["pid"], replica["restarts"]


def answers_of(here: Lab, engine_url: str, target: dict[str, Any]) -> float:
    """How many requests an engine has finished, after a few more were sent to the router."""
    with Load(here, {**target, "requests": 12, "concurrency": 6, "max_tokens": 8}):
        pass
    key_file = f"{HOME}/exaslurm/{NAME}/keys/internal.key"
    done: float = here.client("finished", {"url": engine_url, "key_file": key_file})
    # The canary's request is one of them.
    return done - 1


# -- the helpers -------------------------------------------------------------------------------


def kill_helper(
    line: Line,
    here: Lab,
    target: dict[str, Any],
    name: str,
    pattern: str,
    node: str,
    is_back: Callable[[], bool] = lambda: True,
) -> None:
    """Kill one of the helpers: engines stay, answers go on, and it is back."""
    before = {key: engine_of(item) for key, item in replicas(here).items()}
    find = f"pgrep -u {USER} -f '{pattern}'"

    def found() -> list[str]:
        return here.sh(find, host=node, user="root").stdout.split()

    # A process that is named in another's argument list is found too, but only after it.
    (pid, *_) = found() or [""]
    line.need(f"{name} runs on {node}", pid.isdigit(), pid)
    with trickle(here, target) as load:
        line.ran(f"kill -9 of {name}", here.on(node, "kill", "-9", pid, user="root"))
        replaced = until(lambda: bool(found()) and pid not in found(), BACK_S, 1)
        line.check(f"{name}: another one runs", replaced)
        back = until(lambda: is_back() and is_whole(here), BACK_S, 1)
        line.check(f"{name}: everything is back", back, "" if back else what_is(here))
    after = {key: engine_of(item) for key, item in replicas(here).items()}
    pids = " ".join(str(pid) for _, pid, _ in after.values())
    line.check(f"{name}: the engines are the same processes", after == before, pids)
    failures = load.ended["not_begun"] + load.ended["begun"]
    line.at_least(f"{name}: requests answered meanwhile", load.ended["ok"], 5)
    line.check(f"{name}: requests failed", failures == 0, json.dumps(load.ended))


@dataclass
class Load:
    """Requests through the router while something else is done. ``ended`` says how they did."""

    here: Lab
    order: dict[str, Any]
    ended: dict[str, Any] = field(default_factory=lambda: {"ok": 0, "not_begun": 0, "begun": 0})

    def __enter__(self) -> Load:
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(900)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def _ask(self) -> None:
        self.ended = self.here.client("load", self.order, timeout_s=900)


@contextmanager
def trickle(here: Lab, target: dict[str, Any]) -> Iterator[Load]:
    """A few requests a second, from before the fault until everything is back."""
    stop, tell = f"{HOME}/trickle-stops", f"{HOME}/trickle-runs"
    here.sh(f"rm -f {stop} {tell}")
    more = {"requests": 3000, "concurrency": 3, "pause_s": 0.3, "until": stop, "max_tokens": 16}
    # The first of these requests is answered before anything is killed.
    with Load(here, {**target, **more, "started": tell}) as load:
        until(lambda: here.sh(f"test -e {tell}").returncode == 0, 60, 0.1)
        try:
            yield load
        finally:
            here.sh(f"touch {stop}")


# -- what status says --------------------------------------------------------------------------


def replicas(here: Lab) -> dict[str, dict[str, Any]]:
    """Replicas by id."""
    status = here.status(NAME)
    return {item["id"]: item for cell in status["cells"] for item in cell["replicas"]}


def head_of(here: Lab) -> str:
    """The node of the cell's head."""
    (cell,) = here.status(NAME)["cells"]
    name: str = next(node["node"] for node in cell["nodes"] if node["het_group"] == 0)
    return name


def ray_epoch(here: Lab) -> int:
    """Epoch of the cell's Ray if it is complete, else 0."""
    (cell,) = here.status(NAME)["cells"]
    ray = cell["ray"] or {"state": "unknown"}
    return int(ray["epoch"]) if ray["state"] == "complete" else 0


def is_whole(here: Lab) -> bool:
    """Every replica ready and seen live, every node reports, Ray complete."""
    status = here.status(NAME)
    (cell,) = status["cells"]
    return bool(
        status["phase"] == "ready"
        and cell["source"] == "controller"
        and cell["ray"]["state"] == "complete"
        and all(node["state"] == "joined" for node in cell["nodes"])
        and all(replica["pid"] is not None for replica in cell["replicas"])
    )


def what_is(here: Lab) -> str:
    return here.exaslurm("status", NAME).stdout
