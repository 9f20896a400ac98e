"""Running scripts/demo as a person would, and looking at what it shows."""

from __future__ import annotations

import re
import subprocess
import time

from acceptance.lab import ROOT
from acceptance.runner import Line

FIRST_RUN_S = 900.0
SECOND_RUN_S = 240.0


def run_demo(line: Line, *options: str, limit_s: float = SECOND_RUN_S) -> None:
    """One run of the demo: in time, with an answer, the table of phases, and how to go on."""
    begin = time.monotonic()
    done = subprocess.run(
        [str(ROOT / "scripts/demo"), *options], capture_output=True, text=True, timeout=1800
    )
    took_s = time.monotonic() - begin
    label = " ".join(["demo", *options])
    line.ran(label, done)
    line.at_most(f"{label}: time", took_s, limit_s)
    rows = re.findall(r"^c000-r\d+ .* ready .*$", done.stdout, re.MULTILINE)
    line.check("replicas in the table of phases", len(rows) == 3, len(rows))
    whole = [row for row in rows if len(re.findall(r"\d+(?:\.\d)? s|\d\d:\d\d", row)) >= 5]
    line.check("each with five phases", len(whole) == 3, rows[0] if rows else "none")
    answer = done.stdout.split("hello: ready", 1)[0].strip().splitlines()
    line.check("an answer was printed", len(answer) > 1, answer[-1][:60] if answer else "none")
    line.check("it says how to stop", "exaslurm stop hello" in done.stderr)
