"""The table of this directory and its tests say the same."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
_ADDRESS = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(?:issues|pull)/[0-9]+")


def named() -> Iterator[tuple[str, str]]:
    """Each address that a test's docstring names, and the test."""
    for path in sorted(HERE.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for address in _ADDRESS.findall(ast.get_docstring(node) or ""):
                    yield address, f"{path.name}::{node.name}"


def listed() -> Iterator[tuple[str, str]]:
    for row in (HERE / "README.md").read_text().splitlines():
        found = _ADDRESS.search(row)
        if row.startswith("|") and found:
            for test in re.findall(r"`(test_\w+\.py::test_\w+)`", row):
                yield found.group(), test


def test_each_reported_problem_has_a_test() -> None:
    assert sorted(set(listed())) == sorted(set(named()))
    assert len({address for address, _ in listed()}) >= 55
