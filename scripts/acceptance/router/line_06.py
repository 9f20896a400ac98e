"""Every problem that users of routers have reported, at full size."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

from acceptance.lab import ROOT
from acceptance.runner import Line

TITLE = "each problem that users of routers have reported has a test, and does not happen here"

PROBLEMS = ROOT / "tests" / "router" / "problems"
# What the tests scale down to run in seconds.
FULL_SIZE = {"EXASLURM_ERROR_STREAMS": "10000", "EXASLURM_DISTINCT_PROMPTS": "1000000"}
_ROW = re.compile(r"^\| \[([^]]+)\]\((\S+)\) \| (.*) \|$", re.MULTILINE)


def run(line: Line) -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = ["-q", "-W", "error", "--timeout", "900", f"--junit-xml={report}", str(PROBLEMS)]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words],
            cwd=ROOT,
            env={**os.environ, **FULL_SIZE},
            capture_output=True,
            text=True,
            timeout=3600,
        )
        results = read(report)
    problems: dict[str, tuple[str, list[str]]] = {}
    for name, address, tests in _ROW.findall((PROBLEMS / "README.md").read_text()):
        problems[address] = (name, re.findall(r"`([^`]+)`", tests))
    for name, tests in problems.values():
        seen = [outcome for test in tests for outcome in results.get(test, ["not run"])]
        bad = [outcome for outcome in seen if outcome != "passed"]
        found = f"{len(seen)} cases" if not bad else f"{len(bad)} of {len(seen)}: {bad[0]}"
        line.check(name, not bad, found)
    last = (done.stdout.strip().splitlines() or ["no output"])[-1]
    line.check(f"{len(problems)} reports; all tests", done.returncode == 0, last)
    if done.returncode:
        line.note(done.stdout[-8000:])


def read(report: Path) -> dict[str, list[str]]:
    """Outcomes of each test's cases, by ``file::function``."""
    outcomes: dict[str, list[str]] = defaultdict(list)
    for case in ET.parse(report).iter("testcase"):
        module = case.get("classname", "").rpartition(".")[2]
        function = case.get("name", "").partition("[")[0]
        wrong = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        outcomes[f"{module}.py::{function}"].append(wrong[0] if wrong else "passed")
    return outcomes
