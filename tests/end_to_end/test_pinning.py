"""Real engines in the lab stay on the cores that were planned; a changed mask is reported."""

from __future__ import annotations

import pytest

from tests.end_to_end.conftest import Lab, Proof

from acceptance.placement import line_02  # isort: skip


@pytest.mark.lab
@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_two_engines_of_one_core(real_lab: Lab, line: Proof) -> None:
    line_02.prove(line, real_lab)
    assert line.wrong == []
