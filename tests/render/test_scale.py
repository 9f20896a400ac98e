"""Rendering at full size: 256 nodes with 12 replicas each, in 16 cells."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

from tests.render.test_scripts import assert_clean

REPOSITORY = Path(__file__).resolve().parents[2]
SPEC = REPOSITORY / "examples" / "aurora-scale.yaml"
LIMIT_S = 2.0


def render(output: Path) -> float:
    """Run the command; the CPU seconds that it took, start of Python and imports included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "exaslurm", "render", str(SPEC), "--output", str(output)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "HOME": "/home/ada", "USER": "ada"},
        check=True,
        capture_output=True,
        timeout=60,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def files(directory: Path) -> dict[str, str]:
    paths = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_text() for path in paths}


def test_full_size(tmp_path: Path) -> None:
    output = tmp_path / "out"
    seconds = render(output)
    first = files(output)
    print(f"{seconds:.2f} s of CPU")
    assert seconds < LIMIT_S
    render(output)
    assert files(output) == first
    plan = json.loads(first["plan.json"])
    replicas = sum(part["count"] for cell in plan["cells"] for part in cell["replica_sets"])
    assert (len(plan["cells"]), replicas) == (16, 3072)
    scripts = sorted((output / "scripts").iterdir())
    assert len(scripts) == 16
    assert_clean(*scripts)
