"""Fakes for what a healthy Slurm will not do on demand: time out, lose an answer, refuse.

What they print where they do not fail is what the real one prints: ``test_lab.py`` holds both
against each other.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from exaslurm.slurm.client import Slurm
from tests.lab.kit import RunningLab, require


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


REPOSITORY = Path(__file__).resolve().parents[2]
NODE_PYTHON = Path(os.environ.get("EXASLURM_ENV", "/opt/exaslurm/env")) / "bin" / "python"


class ProductLab(RunningLab):
    """A lab in which this tree's code is run."""

    def exaslurm(
        self, *arguments: str, host: str = "login", user: str = "exa1", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """``python -m exaslurm``, whatever comes of it."""
        words = ["-m", "exaslurm", *arguments]
        return self.run("exec", "--user", user, host, "--", *self.python(*words, **variables))

    def eval(self, code: str, *arguments: str, host: str = "login", **variables: str) -> Any:
        """Run Python in a host; the JSON that it prints last."""
        printed = self.on(host, *self.python("-c", code, *arguments, **variables))
        return json.loads(printed.splitlines()[-1])

    @staticmethod
    def pythonpath() -> str:
        """This tree: on the nodes too, since a job inherits its submitter's environment.

        If the lab's users may not look into it (a clone below /root), they run what scripts/env
        installed, which scripts/test has just brought up to date.
        """
        return str(REPOSITORY)

    @staticmethod
    def python(*arguments: str, **variables: str) -> list[str]:
        env = {"PYTHONPATH": ProductLab.pythonpath(), "PYTHONDONTWRITEBYTECODE": "1", **variables}
        return ["env", *(f"{k}={v}" for k, v in env.items()), str(NODE_PYTHON), *arguments]


def product_lab(kind: str) -> Iterator[ProductLab]:
    """Bring up a lab of ``PROFILE-VERSION`` with three nodes, and take it away."""
    profile, _, version = kind.partition("-")
    require(version)
    if not NODE_PYTHON.is_file():
        pytest.skip(f"no {NODE_PYTHON}: scripts/env")
    lab = ProductLab(f"t{os.getpid()}{profile[0]}{version.replace('.', '')}", profile, version)
    try:
        lab.up(3)
        yield lab
    finally:
        lab.run("down")


@pytest.fixture(scope="module", params=["wide-22.05", "real-24.11"])
def slurm_lab(request: pytest.FixtureRequest) -> Iterator[ProductLab]:
    yield from product_lab(request.param)
