"""Labs for the tests: each of their own, so that they disturb no lab that is in use."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.lab.kit import RunningLab, require


def _started(lab: RunningLab, nodes: int) -> Iterator[RunningLab]:
    require(lab.slurm)
    lab.up(nodes)
    yield lab
    lab.lab("down")


@pytest.fixture(scope="session")
def lab() -> Iterator[RunningLab]:
    """Three nodes, profile wide, the machine's own Slurm."""
    yield from _started(RunningLab(f"test{os.getpid()}"), 3)


@pytest.fixture(
    scope="module",
    params=["wide-22.05", "real-22.05", "wide-24.11", "real-24.11"],
)
def any_lab(request: pytest.FixtureRequest) -> Iterator[RunningLab]:
    """Each kind of lab in turn."""
    profile, _, slurm = request.param.partition("-")
    name = f"{profile}{slurm.replace('.', '')}-{os.getpid()}"
    yield from _started(RunningLab(name, profile, slurm), 3)
