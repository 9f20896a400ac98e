from __future__ import annotations

import random

from exaslurm.simulate.slope import SETTLED_S, Sample, slope


def life(name: str, begin: float, end: float, level: float, per_s: float, seed: int = 1):  # type: ignore[no-untyped-def]
    rng = random.Random(seed)
    at = begin
    while at < end:
        yield Sample(process=name, at_s=at, age_s=at - begin,
                     value=level + per_s * (at - begin) + rng.gauss(0.0, 0.5))  # fmt: skip
        at += 2.0


def test_a_leak_is_seen_through_noise() -> None:
    found = slope(list(life("1", 0.0, 2000.0, 50.0, 10 / 3600)), since_s=500.0)
    assert found is not None
    assert found.low_per_h < 10.0 < found.high_per_h
    assert found.low_per_h > 8.0
    assert found.grown(1800.0) > 4.0


def test_what_only_trembles_does_not_grow() -> None:
    found = slope(list(life("1", 0.0, 2000.0, 50.0, 0.0)), since_s=500.0)
    assert found is not None
    assert found.low_per_h < 0.0 < found.high_per_h
    assert found.grown(1800.0) == 0.0


def test_processes_are_not_compared_with_each_other() -> None:
    samples = [
        *life("1", 0.0, 600.0, 40.0, 0.0),
        *life("2", 600.0, 1200.0, 60.0, 0.0, seed=2),
        *life("3", 1200.0, 1800.0, 80.0, 0.0, seed=3),
    ]
    found = slope(samples, since_s=0.0)
    assert found is not None
    assert abs(found.per_h) < 3.0
    assert found.longest_s < 600.0


def test_a_leak_is_seen_in_processes_that_are_replaced() -> None:
    samples = [
        sample
        for number in range(4)
        for sample in life(
            str(number), 700.0 * number, 700.0 * (number + 1), 40.0, 30 / 3600, seed=number
        )
    ]
    found = slope(samples, since_s=0.0)
    assert found is not None
    assert found.low_per_h > 20.0


def test_the_start_of_a_process_does_not_count() -> None:
    grown = [
        Sample(process="1", at_s=at, age_s=at, value=min(at, SETTLED_S)) for at in range(0, 600, 2)
    ]
    found = slope(grown, since_s=0.0)
    assert found is not None
    assert found.per_h == 0.0


def test_of_too_little_nothing_is_said() -> None:
    assert slope([], since_s=0.0) is None
    assert slope(list(life("1", 0.0, SETTLED_S + 4.0, 1.0, 0.0)), since_s=0.0) is None
