"""A real engine over two nodes of the lab. ``scripts/accept placement.8`` kills more of it."""

from __future__ import annotations

import pytest

from tests.end_to_end.conftest import Lab, Proof

from acceptance.placement import line_08  # isort: skip


@pytest.mark.lab
@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_an_engine_over_two_nodes_is_one_replica(wide_lab: Lab, line: Proof) -> None:
    line_08.prove(line, wide_lab, ranks=(1,))
    assert line.wrong == []
