from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exaslurm.router.rate import Bucket


def test_a_minutes_worth_at_once_then_the_rate() -> None:
    bucket = Bucket(60, 100.0)
    bucket.take(60)
    assert bucket.wait_s(1, 100.0) == pytest.approx(1.0)
    assert bucket.level(110.0) == pytest.approx(10.0)
    assert bucket.level(10_000.0) == 60


def test_giving_back_fills_no_further_than_full() -> None:
    bucket = Bucket(60, 0.0)
    bucket.take(10)
    bucket.take(-100)
    assert bucket.level(0.0) == 60


def test_another_rate_forgives_nothing() -> None:
    bucket = Bucket(60, 0.0)
    bucket.take(50)
    bucket.change(600, 0.0)
    assert bucket.level(0.0) == 550
    bucket.change(20, 0.0)
    assert bucket.level(0.0) == -30
    assert bucket.wait_s(1, 0.0) == pytest.approx(93.0)


@given(
    per_min=st.integers(1, 10_000),
    steps=st.lists(st.tuples(st.floats(0, 30), st.integers(0, 500)), max_size=60),
)
def test_no_more_is_taken_than_the_rate_allows(
    per_min: int, steps: list[tuple[float, int]]
) -> None:
    bucket = Bucket(per_min, 0.0)
    now_s, taken = 0.0, 0
    for passed_s, cost in steps:
        now_s += passed_s
        wait_s = bucket.wait_s(cost, now_s)
        assert wait_s >= 0
        if wait_s == 0:
            bucket.take(cost)
            taken += cost
        else:  # and the time it names is right
            assert copy.copy(bucket).wait_s(cost, now_s + wait_s) < 1e-6
    # One cost may go beyond what is there: a debt of at most itself.
    assert taken <= per_min * (1 + now_s / 60) + 500 + 1e-6
