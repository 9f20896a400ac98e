"""What dies comes back, where Slurm tracks processes by cgroup."""

from __future__ import annotations

import pytest

from tests.end_to_end.conftest import Lab, Proof

from acceptance.path import line_05  # isort: skip


@pytest.mark.lab
@pytest.mark.timeout(900)
def test_simulated_engines_and_their_helpers(real_lab: Lab, line: Proof) -> None:
    line_05.prove(line, real_lab, line_05.SIMULATED, max_tokens=64)
    assert line.wrong == []
