"""The same on the other Slurm, and without heterogeneous jobs on both."""

from __future__ import annotations

from acceptance.demo import FIRST_RUN_S, run_demo
from acceptance.lab import USER, lab
from acceptance.path.line_06 import stops_clean
from acceptance.runner import Line

TITLE = "demo (second run) and stop on Slurm 24.11, and with hetjobs: false on both"

WITHOUT = """\
schema: exaslurm/site/v1
name: lab
extends: lab
slurm: {hetjobs: false}
"""
MODELS = f"/exa/shared/scratch/{USER}/exaslurm-models"
SITE = ".config/exaslurm/sites/lab.yaml"


def run(line: Line) -> None:
    for slurm in ("22.05", "24.11"):
        for hetjobs in (True, False):
            if (slurm, hetjobs) != ("22.05", True):  # that is lines 1 and 6
                variant(line, slurm, hetjobs)


def variant(line: Line, slurm: str, hetjobs: bool) -> None:
    line.note(f"--- Slurm {slurm}, hetjobs: {str(hetjobs).lower()}")
    here = lab(line, slurm=slurm)
    version = here.sh("sinfo --version").stdout.strip()
    line.check("Slurm", f" {slurm}." in version, version)
    here.exaslurm("stop", "hello", timeout_s=240)
    options = ["--name", here.name, "--slurm", slurm] + ([] if hetjobs else ["--no-hetjobs"])
    if here.sh(f"test -d {MODELS}").returncode:
        # A new lab: its shared file system has no model yet. That is a first run.
        run_demo(line, *options, limit_s=FIRST_RUN_S)
        here.exaslurm("stop", "hello", timeout_s=240)
    run_demo(line, *options)
    layout = here.status("hello")["layout"]
    line.check("layout", layout == ("het" if hetjobs else "single"), layout)
    line.ran("stop", here.exaslurm("stop", "hello", timeout_s=240))
    if not hetjobs:
        here.write(SITE, WITHOUT)
        line.cleanups.append(lambda: here.sh(f"rm -f {SITE}"))
    stops_clean(line, here)
    here.sh(f"rm -f {SITE}")
