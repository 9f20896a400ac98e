"""A bad node is left out, named, and excluded from the next job."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.end_to_end.conftest import NODE_ENV, Lab, Proof
from tests.lab.kit import RunningLab, require

from acceptance.placement import line_07  # isort: skip

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]


@pytest.fixture
def lab() -> Iterator[Lab]:
    require("22.05")
    if not (NODE_ENV / "bin/exaslurm").is_file():
        pytest.skip(f"no {NODE_ENV}: scripts/env")
    running = RunningLab(f"b{os.getpid()}")
    try:
        running.up(6)
        yield Lab(running.name, str(NODE_ENV))
    finally:
        running.run("down")


def test_a_cell_of_four_comes_up_on_three(lab: Lab, line: Proof) -> None:
    line_07.check(line, lab)
    line_07.never_started(line, lab)
    assert line.wrong == []
