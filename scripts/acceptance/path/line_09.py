"""Rendering: large, deterministic, quick, clean; and the scripts run by hand."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from acceptance.lab import HOME, ROOT, lab, until
from acceptance.runner import Line

TITLE = "render for 256 nodes x 12 replicas; the same scripts started by hand"

SMALL = """\
schema: exaslurm/v1
deployment: byhand
site: lab
time_limit: 00:10:00
workers: {nodes: 2, nodes_per_cell: 1}
models:
  - name: pretend
    engine: {kind: simulated}
    shards: [{name: base, replicas: 2}]
"""


def run(line: Line) -> None:
    with tempfile.TemporaryDirectory() as folder:
        render_large(line, Path(folder))
    start_by_hand(line)


def render_large(line: Line, folder: Path) -> None:
    spec = ROOT / "examples" / "aurora-scale.yaml"
    target = folder / "out"
    texts = []
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-m", "exaslurm", "render", str(spec), "--output", str(target)],
            cwd=ROOT,
            env={**os.environ, "EXASLURM_HOME": str(folder / "state")},
            capture_output=True,
            text=True,
            timeout=120,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        line.ran("rendered", done)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        files = sorted(path for path in target.rglob("*") if path.is_file())
        texts.append({path.name: path.read_bytes() for path in files})
    scripts = sorted((target / "scripts").iterdir())
    plan = json.loads((target / "plan.json").read_text())
    counts = [item["count"] for cell in plan["cells"] for item in cell["replica_sets"]]
    line.check("replicas in the plan", sum(counts) == 3072, sum(counts))
    line.check("scripts", len(scripts) == 16, len(scripts))
    line.check("both renderings are identical", texts[0] == texts[1])
    line.at_most("CPU time of one rendering", cpu_s, 2.0)
    syntax = [
        subprocess.run(["bash", "-n", str(path)], capture_output=True, timeout=30).returncode
        for path in scripts
    ]
    line.check("bash -n finds nothing", not any(syntax))
    shellcheck = str(Path(sys.executable).with_name("shellcheck"))
    lint = subprocess.run(
        [shellcheck, *map(str, scripts)], capture_output=True, text=True, timeout=120
    )
    line.check("shellcheck finds nothing", lint.returncode == 0, lint.stdout or "yes")


def start_by_hand(line: Line) -> None:
    """Four nodes in two cells: a head and a worker each, by plain sbatch."""
    here = lab(line)
    here.write("byhand.yaml", SMALL)
    here.sh("rm -rf byhand")
    done = here.exaslurm("render", "byhand.yaml", "--output", "byhand")
    line.ran("rendered for the lab", done)
    plan = json.loads(here.sh("cat byhand/plan.json").stdout)
    nodes = sum(part["nodes"] for cell in plan["cells"] for part in cell["components"])
    line.check("nodes and cells", (nodes, len(plan["cells"])) == (4, 2), f"{nodes}, 2 cells")
    ids = []
    for cell in plan["cells"]:
        sent = here.sh(f"sbatch --parsable byhand/scripts/{cell['name']}.sbatch")
        ids.append(sent.stdout.strip())
        line.ran(f"sbatch takes {cell['name']}", sent)
    line.cleanups.append(lambda: here.sh(f"scancel {' '.join(ids)}; rm -rf byhand"))
    for cell in plan["cells"]:
        marker = f"{HOME}/byhand/cells/{cell['name']}/bootstrap.json"

        def written(path: str = marker) -> bool:
            return here.sh(f"test -s {path}").returncode == 0

        line.need(f"{cell['name']} wrote its marker", until(written, 90))
        found = json.loads(here.sh(f"cat {marker}").stdout)
        same = found["plan_hash"] == plan["hash"]
        line.check(f"{cell['name']} parsed the plan", same, found["plan_hash"][:12])
