"""One deployment name, one spec: attach or refuse."""

from __future__ import annotations

import json

from acceptance.lab import lab
from acceptance.runner import Line

TITLE = "the same spec twice attaches; a changed one is refused, naming rollout"

SPEC = """\
schema: exaslurm/v1
deployment: twice
site: lab
workers: {nodes: 1}
models:
  - name: pretend
    engine: {kind: simulated}
"""


def run(line: Line) -> None:
    here = lab(line)
    line.ran("submitted", here.submit(line, SPEC, "twice"))
    before = here.jobs()
    line.need("jobs in the queue", bool(before), " ".join(before))
    again = here.exaslurm("submit", "twice.yaml", "--json")
    line.ran("submitted again", again)
    answer = json.loads(again.stdout)
    line.check("it attached", answer["attached"] is True)
    known = [job["job_id"] for job in answer["jobs"]]
    line.check("to the job that runs", known == [before[0].split("+")[0]], " ".join(known))
    line.check("nothing else was submitted", here.jobs() == before, " ".join(here.jobs()))
    line.check("still ready", here.status("twice")["phase"] == "ready")

    here.write("twice.yaml", SPEC + "    shards: [{name: base, replicas: 2}]\n")
    changed = here.exaslurm("submit", "twice.yaml")
    line.check("a changed spec: exit code 2", changed.returncode == 2, changed.returncode)
    line.check("the answer names rollout", "rollout" in changed.stderr, changed.stderr.strip())
    line.check("nothing was submitted", here.jobs() == before, " ".join(here.jobs()))
