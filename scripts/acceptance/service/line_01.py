"""An engine of real vLLM is killed under load."""

from __future__ import annotations

import json

from acceptance.lab import HOME, until
from acceptance.runner import Line
from acceptance.service import kit, strikes
from acceptance.tiny import tiny_model

TITLE = "kill -9 of an engine (real vLLM) at a concurrency of 16, as a person does it"

NAME = "struck"
MODEL = "tiny"
SPEC = """\
schema: exaslurm/v1
deployment: {name}
site: lab
workers: {{nodes: 5}}
models:
  - name: {model}
    source: {{path: {path}}}
    engine: {{args: {{max-model-len: 2048, kv-cache-memory-bytes: 67108864}}}}
    shards: [{{name: base, replicas: 3}}]
"""


def run(line: Line) -> None:
    here = kit.big_lab(line)
    spec = SPEC.format(name=NAME, model=MODEL, path=tiny_model(line, here))
    line.ran("three replicas are ready", here.submit(line, spec, NAME, wait="10m"))
    load = ("--concurrency=16", "--streams=0.6", "--max-tokens=96", "--after=10")
    report = strikes.strike(line, here, NAME, "kill-engine", *load)
    begun = report["figures"]["failed"]["begun_event"]
    line.at_least("begun streams that ended with an error event", begun, 1)
    strikes.success_within(line, report, 1.0)
    (victim,) = (name.split(" ")[0] for name in report["victims"])
    line.check("one engine is another process", report["engines_changed"] == 1)
    # Its first answer is that of its canary.
    url = kit.replicas(here, NAME)[victim]["url"]
    key_file = f"{HOME}/exaslurm/{NAME}/keys/internal.key"
    order = {"url": url, "key_file": key_file}
    served = until(lambda: here.client("finished", order) > 1, 60, 1)
    line.check("it has answered requests of the router since", served)
    line.note(json.dumps(report))
