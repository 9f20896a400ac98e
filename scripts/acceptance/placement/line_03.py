"""Placement on random nodes, many of them."""

from __future__ import annotations

import os
import subprocess
import sys

from acceptance.lab import ROOT
from acceptance.runner import Line

TITLE = "random nodes: no overlap, nothing far unless forced, never worse than brute force"

EXAMPLES = 1000
LIMIT_S = 1200


def run(line: Line) -> None:
    env = {**os.environ, "EXASLURM_EXAMPLES": str(EXAMPLES)}
    words = ["-q", "-W", "error", f"--timeout={LIMIT_S}", "tests/bind/test_optimum.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=3 * LIMIT_S,
    )
    line.ran(f"{EXAMPLES} random nodes for each property", done)
    line.note(done.stdout.strip().splitlines()[-1])
