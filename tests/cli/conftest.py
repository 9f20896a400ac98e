"""Running the command line in this process, as the shell would see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from exaslurm.cli.main import run


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def exaslurm(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Outcome]:
    """Run ``exaslurm ARGS`` with a state directory of its own and no variables of ours."""
    import os

    for name in list(os.environ):
        if name.startswith(("EXASLURM_", "SLURM_", "SBATCH_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("EXASLURM_HOME", str(tmp_path / "state"))

    def call(*args: object) -> Outcome:
        code = run([str(arg) for arg in args])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call
