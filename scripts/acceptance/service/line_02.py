"""Nodes with real vLLM are lost under load: one, one without a word, two at once."""

from __future__ import annotations

import json

from acceptance.lab import Lab
from acceptance.runner import Line
from acceptance.service import kit, strikes
from acceptance.tiny import tiny_model

TITLE = "a node lost, a link cut, two nodes lost at once (real vLLM): replicas move, nothing fails"

NAME = "lost"
MODEL = "tiny"
WAIT_S = 3.0
# Slurm ends a heterogeneous job whole when it calls one of its nodes DOWN; an ordinary job with
# --no-kill goes on without the node.
SITE = "slurm: {hetjobs: false}\n"
SPEC = """\
schema: exaslurm/v1
deployment: {name}
site: single
workers: {{nodes: 5, min_nodes: 2}}
models:
  - name: {model}
    source: {{path: {path}}}
    engine: {{args: {{max-model-len: 2048, kv-cache-memory-bytes: 67108864}}}}
    shards: [{{name: base, replicas: 3}}]
"""
LOAD = ("--concurrency=16", "--rate=24", "--streams=0.5", "--max-tokens=96")


def run(line: Line) -> None:
    here = kit.big_lab(line)
    kit.site(here, "single", SITE)
    spec = SPEC.format(name=NAME, model=MODEL, path=tiny_model(line, here))
    line.ran("three replicas are ready", here.submit(line, spec, NAME, wait="10m"))
    lose(line, here, "kill-node", limit_s=strikes.KILLED_S / strikes.TIMES)
    lose(line, here, "cut-link", limit_s=strikes.CUT_S / strikes.TIMES)
    line.ran("stop", here.exaslurm("stop", NAME, timeout_s=240))
    line.ran("three replicas are ready again", here.submit(line, spec, NAME, wait="10m"))
    lose(line, here, "kill-node", "--nodes=2", limit_s=strikes.KILLED_S / strikes.TIMES)


def lose(line: Line, here: Lab, fault: str, *options: str, limit_s: float) -> None:
    before = kit.engines(here, NAME)
    report = strikes.strike(line, here, NAME, fault, *LOAD, *options)
    gone = {name.split(" ")[0] for name in report["victims"]}
    strikes.success_within(line, report, limit_s)
    line.at_most(f"{fault}: waiting plain requests were answered within",
                 report["figures"]["waited_s"], WAIT_S)  # fmt: skip
    after = kit.engines(here, NAME)
    lost = [key for key, (node, _, _) in before.items() if node in gone]
    line.at_least(f"{fault}: replicas that were there", len(lost), 1)
    where = " ".join(f"{key}: {after[key][0]}" for key in lost)
    line.check(f"{fault}: they are on other nodes", all(after[key][0] not in gone for key in lost),
               where)  # fmt: skip
    same = all(after[key] == before[key] for key in before if key not in lost)
    line.check(f"{fault}: the other engines are the same processes", same)
    line.note(json.dumps(report))
