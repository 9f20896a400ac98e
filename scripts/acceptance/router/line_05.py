"""Prompts go where their beginning is cached, on a real trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from acceptance.lab import ROOT
from acceptance.runner import Line

TITLE = (
    "prefix affinity on a real trace: block hits against one pooled cache, balance, time to choose"
)

_TIMEOUT_S = 1200
OURS = "exaslurm, cache sizes not known"
GREEDY = "greedy, sees all caches"


def run(line: Line) -> None:
    data = os.environ.get("EXASLURM_DATA")
    line.need("EXASLURM_DATA names the folder with the trace", bool(data), data or "it is not set")
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "affinity")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=_TIMEOUT_S,
        check=True,
    )
    found = json.loads(done.stdout)
    line.note(f"pooled {found['pooled_hit_percent']}, infinite {found['infinite_hit_percent']} %")
    line.note(f"decision among 3,072 engines, us: {found['decision_us_3072_engines']}")
    rows = {(row["blocks"], row["policy"]): row for row in found["rows"]}
    for row in found["rows"]:
        line.note(
            f"{row['blocks']:5} {row['policy']:34} {row['hit_percent']:5.1f} %, "
            f"max/mean {row['max_to_mean']}, TTFT {row['ttft_to_round_robin']} of round robin"
        )
    for size in (250, 1000, 4000):
        ours, greedy = rows[size, OURS], rows[size, GREEDY]
        if size > 250:
            line.at_least(f"{size} blocks: of one pooled cache", ours["percent_of_pooled"], 95, "%")
        line.at_least(
            f"{size} blocks: hits, and a greedy router's",
            ours["hit_percent"],
            greedy["hit_percent"],
            "%",
        )
        line.at_most(f"{size} blocks: busiest engine to mean", ours["worst_max_to_mean"], 1.25, "")
