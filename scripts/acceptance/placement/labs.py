"""Labs of the lines that need other nodes than the usual lab has."""

from __future__ import annotations

import subprocess

from acceptance.lab import ROOT, Lab
from acceptance.runner import Line


def own_lab(line: Line, name: str, *, nodes: int) -> Lab:
    """A lab of that name with this clone's exaslurm on its nodes, gone at the line's end."""
    built = subprocess.run(
        [str(ROOT / "scripts/env")], stdout=subprocess.PIPE, text=True, timeout=3600
    )
    line.ran("scripts/env", built)
    script = str(ROOT / "scripts/lab")
    line.cleanups.append(lambda: subprocess.run([script, "down", "--name", name], check=True))
    words = ["up", "--name", name, "--nodes", str(nodes), "--install"]
    done = subprocess.run([script, *words], capture_output=True, text=True, timeout=1800)
    line.ran(f"lab {name} with {nodes} nodes", done)
    return Lab(name, built.stdout.strip())
