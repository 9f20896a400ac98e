"""Recorded machines, and nodes as their centres' own pages describe them."""

from __future__ import annotations

import os
import subprocess
import sys

from acceptance.lab import ROOT
from acceptance.runner import Line

TITLE = "recorded machines are read right; five centres' published bindings come out"

LIMIT_S = 600
PARTS = (
    ("recorded machines: devices and what is near", "tests/topo/test_recorded.py"),
    ("node files: a page for every value", "tests/topo/test_nodefiles.py"),
    ("published bindings", "tests/bind/test_published.py"),
    ("bindings on recorded machines", "tests/bind/test_recorded.py"),
)


def run(line: Line) -> None:
    data = os.environ.get("EXASLURM_DATA")
    line.need("EXASLURM_DATA names the folder of recordings", bool(data), data or "it is not set")
    for what, path in PARTS:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-W", "error", path],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        line.ran(what, done)
        line.note(done.stdout.strip().splitlines()[-1])
