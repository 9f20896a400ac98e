"""What weighs on a replica: bounded, fading, and in the right order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exaslurm.core.cell import EngineLoad
from exaslurm.router.choose import choose
from exaslurm.router.weights import (
    FORGOTTEN_AFTER_S,
    MOST,
    forget,
    median,
    penalty,
    slowness,
    smooth,
)

counts = st.integers(0, 10_000)
uses = st.floats(0, 1)
ages = st.floats(0, 100)
latencies = st.floats(0, 1000)
loads = st.builds(EngineLoad, running=counts, waiting=counts, kv_use=uses)


@given(st.none() | loads, ages, counts, latencies, latencies)
def test_it_is_bounded(
    load: EngineLoad | None, age_s: float, own: int, latency_s: float, median_s: float
) -> None:
    weight = penalty(load, age_s=age_s, own=own, latency_s=latency_s, median_s=median_s)
    assert 0 <= weight <= MOST


@given(loads, counts, ages, ages)
def test_figures_fade(load: EngineLoad, own: int, one_s: float, other_s: float) -> None:
    younger_s, older_s = sorted((one_s, other_s))
    assert penalty(load, age_s=older_s, own=own) <= penalty(load, age_s=younger_s, own=own)
    assert penalty(load, age_s=FORGOTTEN_AFTER_S, own=own) == 0


@given(counts, counts, uses, uses, counts)
def test_a_fuller_cache_never_weighs_less(
    running: int, waiting: int, one: float, other: float, own: int
) -> None:
    emptier, fuller = (
        penalty(EngineLoad(running=running, waiting=waiting, kv_use=use), age_s=0, own=own)
        for use in sorted((one, other))
    )
    assert emptier <= fuller


@given(counts, counts, counts, uses, counts)
def test_a_longer_queue_never_weighs_less(
    running: int, one: int, other: int, kv_use: float, own: int
) -> None:
    shorter, longer = (
        penalty(EngineLoad(running=running, waiting=waiting, kv_use=kv_use), age_s=0, own=own)
        for waiting in sorted((one, other))
    )
    assert shorter <= longer


def test_own_requests_are_not_counted_twice() -> None:
    load = EngineLoad(running=40, waiting=0, kv_use=0.5)
    assert penalty(load, age_s=0, own=40) == 0
    assert penalty(load, age_s=0, own=36) == 0  # some ended since
    assert penalty(load, age_s=0, own=0) > 30  # another router's


def test_figures_of_a_busy_time_do_not_outlive_it() -> None:
    """Engines are asked at different times: those that were asked in a burst of ours must not look
    busy when it is over."""
    busy = EngineLoad(running=80, waiting=20, kv_use=1.0)
    assert penalty(busy, age_s=0, own=100, own_then=100) > 40
    assert penalty(busy, age_s=5, own=0, own_then=100) == 0
    half = penalty(busy, age_s=0, own=50, own_then=100)
    assert 20 < half < penalty(busy, age_s=0, own=100, own_then=100)
    # What others had there may still be there.
    assert penalty(busy, age_s=0, own=0, own_then=20) > 70


@given(loads, counts, counts)
def test_fewer_own_requests_than_then_never_weigh_more(
    load: EngineLoad, own_then: int, ended: int
) -> None:
    own = max(own_then - ended, 0)
    then = penalty(load, age_s=0, own=own_then, own_then=own_then)
    assert penalty(load, age_s=0, own=own, own_then=own_then) <= then + 1e-9


def test_the_cache_weighs_steeply_when_nearly_full() -> None:
    def at(kv_use: float) -> float:
        return penalty(EngineLoad(running=20, waiting=0, kv_use=kv_use), age_s=0, own=20)

    assert at(0.8) == 0
    assert 1 < at(0.9) < 4
    assert at(1.0) > 4 * at(0.92)
    assert at(1.0) > 15


def test_slowness_is_told_from_the_differences_of_prompts() -> None:
    assert slowness(0.14, 0.1) == 1
    assert slowness(0.3, 0.1) == pytest.approx(2)
    assert slowness(100, 0.1) == 4
    assert slowness(1, 0) == 1
    assert penalty(None, age_s=0, own=10, latency_s=0.3, median_s=0.1) == pytest.approx(11)


@given(latencies, latencies, st.floats(0, 1000))
def test_a_slow_one_comes_back(latency_s: float, median_s: float, elapsed_s: float) -> None:
    later_s = forget(latency_s, median_s, elapsed_s)
    if latency_s > 0 and median_s > 0:
        assert min(latency_s, median_s) <= later_s * (1 + 1e-9) + 1e-9
        assert later_s <= max(latency_s, median_s) * (1 + 1e-9)
    else:
        assert later_s == latency_s
    assert forget(100.0, 1.0, 120.0) < 1.5


def test_the_median_needs_three() -> None:
    assert median([1.0, 9.0]) == 0
    assert median([0.0, 0.0, 1.0, 9.0]) == 0
    assert median([0.0, 1.0, 2.0, 9.0]) == 2


def test_smoothing_follows_slowly() -> None:
    assert smooth(0.0, 2.0) == 2
    assert 1.0 < smooth(1.0, 2.0) < 1.5
    value = 1.0
    for _ in range(50):
        value = smooth(value, 2.0)
    assert value == pytest.approx(2, rel=0.01)


class _Replica:
    domains = ("", "", "")

    def __init__(self, service_s: float) -> None:
        self.service_s = service_s
        self.outstanding = 0
        self.penalty = 0.0
        self.latency_s = 0.0
        self.ends_s: list[float] = []
        self.served = 0


def test_a_slow_replica_gets_less_but_not_nothing() -> None:
    """Eight replicas, one four times slower, at a load that would fit eight good ones."""
    rng = random.Random(7)
    replicas = [_Replica(0.4 if i == 0 else 0.1) for i in range(8)]
    now_s, every_s, swept_s = 0.0, 0.01, 0.0
    for _ in range(20_000):
        now_s += every_s
        for replica in replicas:
            while replica.ends_s and replica.ends_s[0] <= now_s:
                replica.ends_s.pop(0)
                replica.outstanding -= 1
        if now_s - swept_s >= 0.25:
            middle_s = median(replica.latency_s for replica in replicas)
            for replica in replicas:
                replica.latency_s = forget(replica.latency_s, middle_s, now_s - swept_s)
                replica.penalty = penalty(
                    None,
                    age_s=0,
                    own=replica.outstanding,
                    latency_s=replica.latency_s,
                    median_s=middle_s,
                )
            swept_s = now_s
        picked = choose(replicas, (), rng)
        assert picked is not None
        took_s = picked.service_s * rng.uniform(0.8, 1.2)
        picked.outstanding += 1
        picked.ends_s.append(now_s + took_s)
        picked.ends_s.sort()
        picked.latency_s = smooth(picked.latency_s, took_s)
        picked.served += 1
    share = replicas[0].served / 20_000
    assert 0.005 < share < 0.08
