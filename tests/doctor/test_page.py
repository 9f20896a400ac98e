"""docs/reference/doctor.md has every identifier that there is, and no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = "container|slurm|node|python|storage|tmp|shm|limits|clock|net|ports|gpu|ib|numa|uniform"
IDENTIFIER = re.compile(rf'f?"((?:{ROOMS})\.[a-z_]+)"')
SOURCES = ("exaslurm/doctor", "exaslurm/preflight", "exaslurm/core", "exaslurm/agent/health.py")


def identifiers() -> set[str]:
    found = {"python.vllm", "python.ray", "uniform.python", "uniform.exaslurm", "uniform.vllm",
             "uniform.ray"}  # fmt: skip
    for source in SOURCES:
        path = ROOT / source
        for file in [path] if path.is_file() else sorted(path.glob("*.py")):
            found |= set(IDENTIFIER.findall(file.read_text(encoding="utf-8")))
    return found


def test_the_page_has_them_all() -> None:
    page = (ROOT / "docs/reference/doctor.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    cells = [row.split("|")[1] for row in rows]
    assert set(re.findall(r"`([^`]+)`", " ".join(cells))) == identifiers()
