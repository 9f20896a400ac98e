from __future__ import annotations

import pytest

from exaslurm.core.turns import cell_of, number_of, turn_of


@pytest.mark.parametrize("cell", ["c000", "c127", "a.b", "c.x1"])
@pytest.mark.parametrize("number", [1, 2, 9, 10, 4711])
def test_there_and_back(cell: str, number: int) -> None:
    turn = turn_of(cell, number)
    assert cell_of(turn) == cell
    assert number_of(turn) == number


@pytest.mark.parametrize("name", ["c000", "c000.1", "c000.0", "c000.02", "c000.x", ".2"])
def test_what_is_no_later_turn(name: str) -> None:
    assert cell_of(name) == name
    assert number_of(name) == 1
