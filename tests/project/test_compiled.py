"""setup.py names what is compiled, and by what."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def constants() -> dict[str, object]:
    found = {}
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = ast.literal_eval(node.value)
    return found


def test_the_modules_exist() -> None:
    named = constants()["_COMPILED"]
    assert isinstance(named, list)
    assert named == sorted(set(named))
    assert {"exchange", "upstream", "table"} <= set(named)
    for name in named:
        assert (ROOT / "exaslurm" / "router" / f"{name}.py").is_file(), name


def test_the_compiler_is_the_one_that_checks_types() -> None:
    pins = (ROOT / "requirements" / "dev.txt").read_text().splitlines()
    assert constants()["_COMPILER"] in pins
