"""The order in which pairs meet."""

from __future__ import annotations

import itertools

import pytest

from exaslurm.fabric.rounds import partners


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5, 7, 8, 16, 33, 64])
def test_everybody_meets_everybody_once_and_nobody_twice_at_a_time(nodes: int) -> None:
    plans = [partners(nodes, rank) for rank in range(nodes)]
    assert {len(plan) for plan in plans} == {0 if nodes == 1 else nodes - 1 + nodes % 2}
    met = []
    for number in range(len(plans[0])):
        for rank, plan in enumerate(plans):
            other = plan[number]
            if other is not None:
                assert plans[other][number] == rank  # both know of it
                met.append((min(rank, other), max(rank, other)))
    assert sorted(met) == sorted(2 * list(itertools.combinations(range(nodes), 2)))


def test_a_rank_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="rank 4 is none of 4 nodes"):
        partners(4, 4)
