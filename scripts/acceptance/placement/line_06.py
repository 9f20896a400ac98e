"""Doctor finds every fault that is planted, in a running lab and in recorded trees."""

from __future__ import annotations

import subprocess
import sys

from acceptance.lab import ROOT, Lab
from acceptance.placement.faults import FAULTS, NODES, Checks, Fault, doctor, planted, verdict
from acceptance.placement.labs import own_lab
from acceptance.runner import Line

TITLE = "doctor: each planted fault by its id, value and remedy, and nothing else"

RECORDED = "tests/doctor/test_recorded_faults.py"


def run(line: Line) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", RECORDED],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    last = done.stdout.strip().splitlines()[-1:] or [done.stderr]
    line.check("faults in recorded trees", done.returncode == 0, last[0])
    lab = own_lab(line, "doctor", nodes=NODES + 1)
    code, sound = doctor(lab, None)
    failed = [check["id"] for checks in sound.values() for check in checks
              if check["outcome"] == "fail"]  # fmt: skip
    line.need("nothing fails before anything is broken", code == 0 and not failed, failed or "yes")
    for fault in FAULTS:
        one(line, lab, fault, sound)


def one(line: Line, lab: Lab, fault: Fault, sound: Checks) -> None:
    with planted(lab, fault):
        code, found = doctor(lab, fault)
    wrong = verdict(fault, code, found, sound)
    values = [
        f"{check['id']}: {check['value']}"
        for check in found.get(fault.host, [])
        if check["outcome"] == "fail"
    ]
    line.check(fault.name, not wrong, "\n".join(wrong) or "; ".join(values))
