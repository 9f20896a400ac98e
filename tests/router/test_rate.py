from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exaslurm.router.rate import Bucket


def make(per_min: float) -> Bucket:
    return Bucket(per_min, [0.0, 0.0], 1)


def test_a_minutes_worth_at_once_then_the_rate() -> None:
    bucket = make(60)
    for _ in range(60):
        assert bucket.wait_s(1, 100.0) == 0
        bucket.take(1, 100.0)
    assert bucket.wait_s(1, 100.0) == pytest.approx(1.0)
    assert bucket.level(110.0) == pytest.approx(10.0)
    assert bucket.level(10_000.0) == 60


def test_rounding_takes_nothing_from_the_last_one() -> None:
    bucket = make(7)
    now_s = 1_234_567.891
    for _ in range(7):
        assert bucket.wait_s(1, now_s) == 0
        bucket.take(1, now_s)
    assert bucket.wait_s(1, now_s) == pytest.approx(60 / 7)


def test_giving_back_fills_no_further_than_full() -> None:
    bucket = make(60)
    bucket.take(10, 5.0)
    bucket.take(-100, 5.0)
    assert bucket.level(5.0) == 60
    bucket.take(60, 5.0)
    assert bucket.level(5.0) == pytest.approx(0)


def test_another_rate_forgives_nothing() -> None:
    bucket = make(60)
    bucket.take(60, 0.0)
    bucket.change(600)
    assert bucket.level(0.0) == pytest.approx(0)
    assert bucket.level(6.0) == pytest.approx(60)
    bucket.change(20)
    assert bucket.level(60.0) == 20


def test_two_of_the_same_cell_are_one() -> None:
    cells = [0.0]
    one, other = Bucket(60, cells, 0), Bucket(60, cells, 0)
    one.take(40, 1.0)
    other.take(15, 1.0)
    assert one.level(1.0) == other.level(1.0) == pytest.approx(5)


@given(
    per_min=st.integers(1, 10_000),
    steps=st.lists(st.tuples(st.floats(0, 30), st.integers(0, 500)), max_size=60),
)
def test_no_more_is_taken_than_the_rate_allows(
    per_min: int, steps: list[tuple[float, int]]
) -> None:
    bucket = make(per_min)
    now_s, taken = 0.0, 0
    for passed_s, cost in steps:
        now_s += passed_s
        wait_s = bucket.wait_s(cost, now_s)
        assert wait_s >= 0
        if wait_s == 0:
            bucket.take(cost, now_s)
            taken += cost
        else:  # and the time it names is right
            assert bucket.wait_s(cost, now_s + wait_s) == 0
            assert bucket.wait_s(cost, now_s + 0.99 * wait_s - 0.001) > 0
    # One cost may go beyond what is there: a debt of at most itself.
    assert taken <= per_min * (1 + now_s / 60) + 500 + 1e-6
