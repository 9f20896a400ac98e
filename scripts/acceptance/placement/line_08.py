"""A real engine over two nodes: it answers, and is one replica when a part or a node of it dies."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from acceptance.lab import HOME, ROOT, USER, Lab, lab, until
from acceptance.runner import Line
from acceptance.tiny import tiny_model

TITLE = "an engine over two nodes answers; either part killed, it fails and restarts whole"

NAME = "pair"
MODEL = "tiny"
REQUESTS = 24
BACK_S = 300.0
SPEC = """\
schema: exaslurm/v1
deployment: {name}
site: lab
ray: false
workers: {{nodes: 2}}
models:
  - name: {model}
    source: {{path: {path}}}
    parallel: {{tensor: 2, nodes: 2}}
    engine: {{args: {{max-model-len: 2048, kv-cache-memory-bytes: 67108864}}}}
"""


# A heterogeneous job ends when Slurm calls a node of it down: its head is a component of one node.
SINGLE = """\
schema: exaslurm/site/v1
name: single
extends: lab
slurm: {hetjobs: false}
"""


def run(line: Line) -> None:
    here = lab(line)
    prove(line, here)
    leave(line, here)


def prove(line: Line, here: Lab, ranks: Sequence[int] = (1, 0)) -> None:
    """``ranks`` are killed, one after the other."""
    spec = SPEC.format(name=NAME, model=MODEL, path=tiny_model(line, here))
    line.ran("it is ready", here.submit(line, spec, NAME, wait="10m"))
    first = replica(here)
    nodes = first["nodes"]
    line.check("it is one replica on two nodes", len(set(nodes)) == 2, " ".join(nodes))
    line.check("the first of them answers for it", first["node"] == nodes[0], first["url"])
    parts = {node: part_on(here, node, rank) for rank, node in enumerate(nodes)}
    for rank, node in enumerate(nodes):
        line.need(f"rank {rank} runs on {node}", bool(parts[node]), parts[node] or "no")
    answers(line, here, "answered")
    port = meeting_port(here, nodes[0])
    for rank in ranks:
        kill(line, here, nodes, rank)
    again = meeting_port(here, nodes[0])
    line.check("its parts still meet at the same port", again == port, f"{port} {again}")
    line.ran("stop", here.exaslurm("stop", NAME, timeout_s=240))
    for node in nodes:
        left = until(lambda node=node: not processes(here, node), 60)  # type: ignore[misc]
        line.check(f"after stop nothing of it is left on {node}", left)


def leave(line: Line, here: Lab) -> None:
    """The second node is cut off: the first part lives, and its /health says that all is well."""
    here.write(f"{HOME}/.config/exaslurm/sites/single.yaml", SINGLE)
    spec = SPEC.format(name=NAME, model=MODEL, path=tiny_model(line, here))
    # With fewer nodes than min_nodes the cell would be given a successor instead.
    workers = "{nodes: 3, min_nodes: 2}"
    spec = spec.replace("site: lab", "site: single").replace(
        "{nodes: 2}\nmodels", f"{workers}\nmodels"
    )
    line.ran("it is ready, of three nodes on two", here.submit(line, spec, NAME, wait="10m"))
    first, second = replica(here)["nodes"]
    link(here, "cut", second)
    try:
        moved = until(lambda: has_left(here, second), 180, 1)
        line.need(f"it has left {second}", moved, here.exaslurm("status", NAME).stdout)
        back = until(lambda: replica(here)["state"] == "ready", BACK_S, 1)
        line.need("it is ready elsewhere", back, replica(here)["cause"] or "")
        line.check(f"{first} still has a part of it", first in replica(here)["nodes"])
        answers(line, here, "answered from there")
    finally:
        link(here, "restore", second)
    gone = until(lambda: not processes(here, second), 120, 1)
    line.check("its old part has ended on the node that came back", gone)
    line.check("and it is still ready", replica(here)["state"] == "ready")
    line.ran("stop", here.exaslurm("stop", NAME, timeout_s=240))


def link(here: Lab, what: str, node: str) -> None:
    argv = [str(ROOT / "scripts" / "lab"), "link", "--name", here.name, what, node]
    subprocess.run(argv, check=True, capture_output=True, timeout=90)


def has_left(here: Lab, node: str) -> bool:
    """Whether the replica is known, and not on that node."""
    (cell,) = here.status(NAME)["cells"]
    return bool(cell["replicas"]) and node not in cell["replicas"][0]["nodes"]


def kill(line: Line, here: Lab, nodes: list[str], rank: int) -> None:
    """Kill one part; all of it ends, starts again and answers."""
    node = nodes[rank]
    before = replica(here)
    old = {name: processes(here, name) for name in nodes}
    pid = part_on(here, node, rank)
    killed = here.on(node, "kill", "-9", pid, user="root")
    begin = time.monotonic()
    line.ran(f"kill -9 of rank {rank} (pid {pid} on {node})", killed)
    seen: list[dict[str, Any]] = []

    def has_failed() -> bool:
        # It may be loading again by the time that somebody looks.
        seen.append(replica(here))
        return bool(seen[-1]["state"] in ("failed", "loading") and seen[-1]["cause"])

    line.need("the replica has failed", until(has_failed, 30, 0.2), seen[-1]["state"])
    line.check("which part it was, and why", f"rank {rank} on {node}: " in seen[-1]["cause"] and
               "SIGKILL" in seen[-1]["cause"], seen[-1]["cause"])  # fmt: skip
    gone = until(lambda: not any(set(old[name]) & set(processes(here, name)) for name in nodes), 60)
    line.check("all of it has ended, on both nodes", gone)
    back = until(lambda: replica(here)["state"] == "ready", BACK_S, 1)
    line.need("it is ready again", back, f"{time.monotonic() - begin:.0f} s")
    after = replica(here)
    line.check("one restart is counted", after["restarts"] == before["restarts"] + 1,
               after["restarts"])  # fmt: skip
    for number, name in enumerate(nodes):
        new = part_on(here, name, number)
        line.check(f"rank {number} is another process", bool(new) and new not in old[name], new)
    answers(line, here, "answered after that")


def answers(line: Line, here: Lab, what: str) -> None:
    order = {**here.target(NAME, MODEL), "requests": REQUESTS, "concurrency": 4, "max_tokens": 32}
    ended = here.client("load", order)
    line.check(f"{what}, of {REQUESTS} requests", ended["ok"] == REQUESTS, json.dumps(ended))


def replica(here: Lab) -> dict[str, Any]:
    """The one replica, as status shows it."""
    (cell,) = here.status(NAME)["cells"]
    (found,) = cell["replicas"]
    return dict(found)


def part_on(here: Lab, node: str, rank: int) -> str:
    """Pid of the process that leads a part; empty if there is none."""
    find = ("pgrep", "-o", "-u", USER, "-f", "--", f"vllm serve .* --node-rank {rank} ")
    return here.on(node, *find, user="root").stdout.strip()


def processes(here: Lab, node: str) -> list[str]:
    """Pids of everything that engines are on a node: vLLM renames its children."""
    find = ("pgrep", "-u", USER, "-f", "vllm serve|VLLM::|multiprocessing")
    return here.on(node, *find, user="root").stdout.split()


def meeting_port(here: Lab, node: str) -> str:
    """Where the parts of the replica meet."""
    pid = part_on(here, node, 0)
    words = here.on(node, "cat", f"/proc/{pid}/cmdline", user="root").stdout.split("\0")
    return words[words.index("--master-port") + 1]
