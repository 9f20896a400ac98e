"""Acceptance lines as tests: the cheap ones, with simulated engines, in a lab of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.kit import RunningLab, require

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from acceptance.lab import Lab  # noqa: E402
from acceptance.runner import Line, LineFailed  # noqa: E402

NODE_ENV = Path(os.environ.get("EXASLURM_ENV", "/opt/exaslurm/env"))


def made_lab(profile: str) -> Iterator[Lab]:
    """A lab of four nodes with the software of scripts/env."""
    require("22.05")
    if not (NODE_ENV / "bin/exaslurm").is_file():
        pytest.skip(f"no {NODE_ENV}: scripts/env")
    running = RunningLab(f"e{os.getpid()}{profile}", profile)
    try:
        running.up(4)
        yield Lab(running.name, str(NODE_ENV))
    finally:
        running.run("down")


@pytest.fixture(scope="module")
def wide_lab() -> Iterator[Lab]:
    yield from made_lab("wide")


@pytest.fixture(scope="module")
def real_lab() -> Iterator[Lab]:
    yield from made_lab("real")


class Proof(Line):
    """A line that fails the test with everything that it found wrong."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.wrong: list[str] = []

    def _print(self, what: str, found: str, ok: bool) -> None:
        super()._print(what, found, ok)
        if not ok:
            self.wrong.append(f"{what}: {found}")


@pytest.fixture
def line(request: pytest.FixtureRequest) -> Iterator[Proof]:
    """Cleans up after itself, as the runner of the lines does."""
    proof = Proof(request.node.name)
    yield proof
    for cleanup in reversed(proof.cleanups):
        cleanup()


__all__ = ["Lab", "Line", "LineFailed", "Proof"]
