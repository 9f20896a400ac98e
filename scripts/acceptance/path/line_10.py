"""A light command line, and errors that help."""

from __future__ import annotations

import resource
import subprocess
import sys

from acceptance.lab import ROOT
from acceptance.runner import Line

TITLE = "exaslurm --help stays light; each failure is one clear error with its exit code"

HEAVY = {"torch", "ray", "vllm", "numpy", "jinja2", "pydantic", "starlette", "uvicorn", "aiohttp"}


def run(line: Line) -> None:
    help_page = [sys.executable, "-X", "importtime", "-m", "exaslurm", "--help"]
    done = subprocess.run(help_page, cwd=ROOT, capture_output=True, text=True, timeout=60)
    loaded = {row.rsplit("|", 1)[-1].strip().split(".")[0] for row in done.stderr.splitlines()}
    heavy = sorted(loaded & HEAVY)
    line.check("heavy modules loaded by --help", not heavy, " ".join(heavy) or "none")
    took = []
    for _ in range(7):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "exaslurm", "--help"], cwd=ROOT, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    line.at_most("CPU time of exaslurm --help, best of 7", min(took), 0.15)
    tests = ["tests/cli/test_errors.py", "tests/cli/test_main.py", "tests/project/test_light.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-rfE", *tests]
    tested = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    last = (tested.stdout.strip().splitlines() or ["no output"])[-1]
    line.check("tests of errors and exit codes", tested.returncode == 0, last)
