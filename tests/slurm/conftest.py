"""Fakes for what a healthy Slurm will not do on demand: time out, lose an answer, refuse.

What they print where they do not fail is what the real one prints: ``test_lab.py`` holds both
against each other.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from exaslurm.slurm.client import Slurm


class FakeSlurm:
    """Commands on a PATH of their own; every call is written down."""

    def __init__(self, directory: Path) -> None:
        self.bin = directory / "bin"
        self.bin.mkdir()
        self.log = directory / "calls.log"

    def command(self, name: str, body: str) -> None:
        """``body`` is shell; ``$calls`` is how often this command was called before."""
        script = self.bin / name
        script.write_text(
            f"#!/bin/sh\ncalls=$(grep -c '^{name}' {self.log} 2>/dev/null)\n"
            f'echo "{name} $*" >> {self.log}\n{body}\n'
        )
        script.chmod(0o755)

    def calls(self, name: str) -> list[str]:
        if not self.log.exists():
            return []
        lines = self.log.read_text().splitlines()
        return [line for line in lines if line.split()[0] == name]

    def client(self, **options: float) -> Slurm:
        limits = {"timeout_s": 5.0, "submit_timeout_s": 5.0, "look_up_s": 0.3, "pause_s": 0.05}
        return Slurm({"PATH": f"{self.bin}:/usr/bin:/bin"}, **{**limits, **options})


@pytest.fixture
def fake(tmp_path: Path) -> FakeSlurm:
    return FakeSlurm(tmp_path)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "c000.sbatch"
    path.write_text("#!/bin/bash\n")
    return path


@pytest.fixture
def job_line() -> Callable[..., str]:
    """A line as squeue prints it for the client."""

    def line(ident: str = "41", name: str = "exa-x", state: str = "RUNNING") -> str:
        when = "2026-11-29T20:35:45|2026-11-29T20:40:45"
        return f"{ident}|{name}|{state}|c[1-2]|{when}|None"

    return line
