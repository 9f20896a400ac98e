"""What dies comes back, and clients do not notice."""

from __future__ import annotations

import json
import threading
from typing import Any

from acceptance.lab import HOME, ROOT, Lab, lab, until
from acceptance.runner import Line

TITLE = "kill -9 of an engine under load, of gcs_server, of an agent, of the controller"

BACK_S = 180.0


def run(line: Line) -> None:
    # proctrack/cgroup ends every process of a step with its task: the harder profile.
    here = lab(line, name="accept-real", profile="real")
    spec = (ROOT / "examples/lab.yaml").read_text()
    line.ran("three real replicas are ready", here.submit(line, spec, "hello", wait="10m"))
    target = here.target("hello", "smollm2-135m")
    kill_engine(line, here, target)
    for name, pattern, where in (
        ("gcs_server", "gcs_server", "head"),
        ("a node agent", "exaslurm[.]agent", "worker"),
        ("the controller", "exaslurm[.]controller", "head"),
    ):
        kill_helper(line, here, target, name, pattern, where)


def replicas(here: Lab) -> dict[str, dict[str, Any]]:
    """Replicas by id, from `status --json`."""
    status = here.status("hello")
    return {item["id"]: item for cell in status["cells"] for item in cell["replicas"]}


def pids(here: Lab) -> dict[str, tuple[str, int]]:
    return {key: (item["node"], item["pid"]) for key, item in replicas(here).items()}


def is_ready(here: Lab) -> bool:
    return here.exaslurm("status", "hello").returncode == 0


def load(target: dict[str, str], **more: Any) -> dict[str, Any]:
    return {**target, "requests": 200, "concurrency": 8, "max_tokens": 16, **more}


def kill_engine(line: Line, here: Lab, target: dict[str, str]) -> None:
    before = pids(here)
    victim = min(before)
    node, pid = before[victim]
    tell = f"{HOME}/load-runs"
    here.sh(f"rm -f {tell}")
    answers: list[dict[str, Any]] = []
    asking = threading.Thread(
        target=lambda: answers.append(here.client("load", load(target, tell=tell), timeout_s=900))
    )
    asking.start()
    line.check("requests run", until(lambda: here.sh(f"test -e {tell}").returncode == 0, 300))
    killed = here.on(node, "kill", "-9", str(pid), user="root")
    line.ran(f"kill -9 of engine {victim} (pid {pid} on {node})", killed)
    asking.join(900)
    line.need("the requests ended", bool(answers))
    ended = answers[0]
    line.check("answered of 200", ended["ok"] == 200, json.dumps(ended))
    line.at_most("failures of requests not begun", ended["not_begun"], 0, "")
    line.check("the engine is back", until(lambda: is_ready(here), BACK_S, 2))
    after = replicas(here)[victim]
    line.check("as another process", after["pid"] != pid, f"{pid} -> {after['pid']}")
    line.check("its restart is counted", after["restarts"] == 1, after["restarts"])
    again = here.client("load", load(target, requests=30), timeout_s=600)
    line.check("answered of 30 afterwards", again["ok"] == 30, json.dumps(again))


def kill_helper(
    line: Line, here: Lab, target: dict[str, str], name: str, pattern: str, where: str
) -> None:
    """Kill one of the helpers: engines stay, answers go on, and it is back."""
    engines = pids(here)
    node = next(iter(engines.values()))[0] if where == "worker" else head(here)
    find = f"pgrep -u exa1 -f '{pattern}' | head -n 1"
    pid = here.sh(find, host=node, user="root").stdout.strip()
    line.need(f"{name} runs on {node}", pid.isdigit(), pid)
    answers: list[dict[str, Any]] = []
    asking = threading.Thread(
        target=lambda: answers.append(
            here.client("load", load(target, requests=40, concurrency=4), timeout_s=600)
        )
    )
    asking.start()
    line.ran(f"kill -9 of {name} (pid {pid})", here.on(node, "kill", "-9", pid, user="root"))

    def replaced() -> bool:
        found = here.sh(find, host=node, user="root").stdout.strip()
        return found.isdigit() and found != pid

    line.check(f"{name}: another one runs", until(replaced, BACK_S, 1))
    asking.join(600)
    ended = answers[0] if answers else {"ok": 0}
    line.check(f"{name}: answered of 40 meanwhile", ended["ok"] == 40, json.dumps(ended))
    line.check(f"{name}: everything is back", until(lambda: is_whole(here), BACK_S, 2))
    line.check(f"{name}: engines' pids are unchanged", pids(here) == engines, pids(here))


def head(here: Lab) -> str:
    """The node of the cell's head."""
    cell = here.status("hello")["cells"][0]
    return next(node["node"] for node in cell["nodes"] if node["het_group"] == 0)


def is_whole(here: Lab) -> bool:
    """Every replica ready, seen live, Ray complete, every node joined."""
    status = here.status("hello")
    cell = status["cells"][0]
    return bool(
        status["phase"] == "ready"
        and cell["source"] == "controller"
        and cell["ray"]["state"] == "complete"
        and all(node["state"] == "joined" for node in cell["nodes"])
    )
