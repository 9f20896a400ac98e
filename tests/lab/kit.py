"""What the tests of the lab share: a running lab as an object, waiting, skipping."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from labkit import prerequisites  # noqa: E402
from labkit.layout import CHROOT_DIR  # noqa: E402

LAB = str(SCRIPTS / "lab")


@dataclass(frozen=True)
class RunningLab:
    """A lab by its name; every call goes through scripts/lab, as a person's would."""

    name: str
    profile: str = "wide"
    slurm: str = "22.05"

    def run(self, verb: str, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [LAB, verb, "--name", self.name, *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=90,
        )

    def lab(self, verb: str, *arguments: str) -> None:
        result = self.run(verb, *arguments)
        assert result.returncode == 0, result.stderr

    def on(self, host: str, *command: str, user: str = "exa1", text: str = "") -> str:
        """Output of a command that must succeed."""
        result = self.run("exec", "--user", user, host, "--", *command, text=text)
        assert result.returncode == 0, f"{command}: {result.stderr}{result.stdout}"
        return result.stdout

    def sh(self, host: str, script: str, user: str = "exa1") -> str:
        return self.on(host, "bash", "-c", script, user=user)

    def status(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.run("status", "--json").stdout)
        return value

    def up(self, nodes: int) -> None:
        self.lab("up", f"--nodes={nodes}", f"--profile={self.profile}", f"--slurm={self.slurm}")


def wait_for(what: str, true: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.1)


def require(slurm: str, *, accounting: bool = False) -> None:
    """Skip the test where such a lab cannot be."""
    if os.geteuid() != 0:
        pytest.skip("a lab needs root")
    root = Path("/") if slurm == "22.05" else CHROOT_DIR
    if packages := prerequisites.missing_packages(root, accounting):
        pytest.skip(f"a lab needs {', '.join(packages)}")
    if not (root / "usr/sbin/slurmctld").is_file():
        pytest.skip(f"no Slurm {slurm}: scripts/lab chroot")
    if not prerequisites.slurm_version(root).startswith(slurm):
        pytest.skip(f"the Slurm of this machine is not {slurm}")
