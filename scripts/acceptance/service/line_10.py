"""Many failures in the control plane's fast time: nothing leaks, and nothing is lost.

``EXASLURM_FAILURES`` asks for fewer (or more) than the usual 480.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from acceptance.lab import ROOT
from acceptance.runner import Line

TITLE = "480 failures over 64 simulated nodes: no leak, no lost request"

FAILURES = int(os.environ.get("EXASLURM_FAILURES", "480"))
FACTOR, EVERY_S = 6.0, 16.0
LIMIT_S = 40 * 60.0
# What may be certain of growth over the last three quarters, or the time that a process was looked
# at: a share of the memory and one arena, in which Python takes it from the system (so do tables
# that double once: that of interned names, for one), a number of descriptors and of threads.
MEMORY_SHARE, ARENA_MIB, DESCRIPTORS, THREADS = 0.05, 1.0, 2.0, 0.5
ROLES = ("router", "router worker", "controller", "supervisor")
# A run that is shorter than this is not long enough to tell growth from the warmth of a start.
TELLING_S = 900.0


def run(line: Line) -> None:
    place = Path(tempfile.mkdtemp(prefix="exaslurm-soak-"))
    line.cleanups.append(lambda: shutil.rmtree(place, ignore_errors=True))
    found = simulate(line, place)
    line.note(json.dumps(found, separators=(",", ":")))
    line.at_least("failures", found["failures"], FAILURES)
    line.at_least("most of them at the same time", found["at_once"], 2)
    line.at_most("from the start to the end", found["machine_s"], LIMIT_S)
    requests(line, found)
    jobs(line, found)
    growth(line, found)


def simulate(line: Line, place: Path) -> dict[str, Any]:
    """The figures of a run; the line ends here if it does not come to its end."""
    words = [sys.executable, "-m", "exaslurm.simulate", "--directory", str(place / "run")]
    words += ["--failures", str(FAILURES), "--factor", str(FACTOR), "--every-s", str(EVERY_S)]
    with (place / "log").open("w") as log:
        done = subprocess.run(
            words, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True, timeout=2 * LIMIT_S
        )
    last = "\n".join((place / "log").read_text().splitlines()[-5:])
    good = done.returncode == 0
    line.need("the run came to its end", good, "yes" if good else last)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def requests(line: Line, found: dict[str, Any]) -> None:
    classes = found["classes"]
    line.at_least("requests", found["requests"], 3 * FAILURES)
    line.at_most("failed before an answer had begun", classes.get("not_begun", 0), 0, "")
    line.at_most("streams cut without an error event", classes.get("begun_cut", 0), 0, "")
    line.at_most("lost for good with a killed router", classes.get("router_lost", 0), 0, "")
    line.note(
        f"streams ended by an error event: {classes.get('begun_event', 0)}; clients that connected "
        f"again: {found['reconnected']}; slowest: {found['slowest_s']} s"
    )
    for words in found["words"]:
        line.note(words)


def jobs(line: Line, found: dict[str, Any]) -> None:
    line.check("no turn with two jobs", not found["doubled"], found["doubled"])
    line.check(
        "no cell with two turns that serve for longer than a hand-over",
        not found["both_too_long"],
        found["both_too_long"] or f"{found['both_serve_s']} s at most",
    )
    line.check("full strength again at the end", found["full_again_s"] is not None)
    line.at_most("jobs left over", found["jobs_live"] - found["cells"], 0, "")
    line.at_most("processes that ended by themselves", found["unforeseen_ends"], 0, "")


def growth(line: Line, found: dict[str, Any]) -> None:
    """Of each kind of process, by the lower bound of the slope: only what is certain counts."""
    hours = 0.75 * found["failing_s"] / 3600.0
    if found["failing_s"] < TELLING_S:
        line.note("too short a run to tell growth from the warmth of a start")
        return
    for role in ROLES:
        of = found["growth_per_h"].get(role, {})
        for name, unit in (("mem_mib", "MiB"), ("descriptors", ""), ("threads", "")):
            seen = of.get(name)
            if seen is None:
                line.check(f"{role}: {name} was looked at", False)
                continue
            limits = {"descriptors": DESCRIPTORS, "threads": THREADS}
            limit = limits.get(name, MEMORY_SHARE * seen["mean"] + ARENA_MIB)
            certain = max(0.0, seen["low_per_h"]) * min(hours, seen["longest_s"] / 3600.0)
            line.at_most(f"{role}: {name} grown for certain", certain, round(limit, 2), unit)
