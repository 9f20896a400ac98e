"""More at once, fewer only after a while, and never to and fro."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from exaslurm.autoscale.latency import Counts, percentile_s, share_above, total
from exaslurm.autoscale.policy import Rules, Signals, State, begin, step

RULES = Rules(least=1, most=20, up_at=0.75, down_at=0.25, cooldown_s=120.0, capacity=10.0)
EVERY_S = 5.0
FAST: Counts = ((0.5, 100),)
SLOW: Counts = ((0.5, 60), (5.0, 40))


class Shard:
    """A shard whose replicas come up ``bring_up_s`` after they are wanted."""

    def __init__(self, wanted: int = 4, rules: Rules = RULES, bring_up_s: float = 10.0) -> None:
        self.rules = rules
        self.bring_up_s = bring_up_s
        self.now_s = 0.0
        self.state: State = begin(wanted, 0.0)
        self.coming: list[tuple[float, int]] = []
        self.ready = wanted
        self.history: list[int] = [wanted]

    def see(self, in_flight: float, tokens: Counts = (), **more: float) -> int:
        self.now_s += EVERY_S
        for due_s, count in list(self.coming):
            if due_s <= self.now_s:
                self.ready = max(self.ready, min(count, self.state.wanted))
                self.coming.remove((due_s, count))
        signals = Signals(
            now_s=self.now_s,
            ready=self.ready,
            in_flight=in_flight,
            first_tokens=tokens,
            bring_up_s=self.bring_up_s,
            **more,
        )
        before = self.state.wanted
        self.state = step(self.state, signals, self.rules)
        if self.state.wanted > before:
            self.coming.append((self.now_s + self.bring_up_s, self.state.wanted))
        self.ready = min(self.ready, self.state.wanted)
        self.history.append(self.state.wanted)
        return self.state.wanted

    def run(self, seconds: float, load: Callable[[float], float] | float, **more: object) -> int:
        for _ in range(int(seconds / EVERY_S)):
            value = load(self.now_s) if callable(load) else load
            self.see(value, **more)  # type: ignore[arg-type]
        return self.state.wanted


def turns(history: Iterable[int]) -> int:
    """How often it went the other way."""
    found, last, before = 0, 0, None
    for count in history:
        if before is not None and count != before:
            way = 1 if count > before else -1
            found += bool(last) and way != last
            last = way
        before = count
    return found


def test_more_are_wanted_above_up_at() -> None:
    shard = Shard(4)
    assert shard.run(60, 29.0) == 4
    assert shard.run(60, 36.0) in (5, 6)
    assert "of the capacity is in use" in shard.state.reason


def test_no_more_than_twice_as_many_as_serve_while_they_come_up() -> None:
    shard = Shard(2, bring_up_s=60.0)
    assert shard.run(40, 500.0) == 4
    assert shard.run(30, 500.0) <= 8


def test_never_above_the_most_nor_below_the_least() -> None:
    shard = Shard(4)
    assert shard.run(600, 5000.0) == 20
    assert shard.run(3000, 0.0) == 1
    assert replace(RULES, least=3).least == Shard(4, replace(RULES, least=3)).run(3000, 0.0)


def test_fewer_only_after_the_cooldown() -> None:
    shard = Shard(8)
    assert shard.run(115, 1.0) == 8
    assert shard.run(10, 1.0) == 6
    assert shard.run(110, 1.0) == 6
    assert shard.run(15, 1.0) == 4


def test_a_peak_within_the_cooldown_keeps_what_it_needs() -> None:
    shard = Shard(8)
    for _ in range(6):
        shard.run(80, 1.0)
        shard.run(20, 50.0)
    assert shard.state.wanted == 8


def test_between_the_thresholds_nothing_moves() -> None:
    shard = Shard(4)
    shard.run(1200, lambda now_s: 20.0 + 5.0 * math.sin(now_s / 40.0))
    assert set(shard.history) == {4}


def test_full_caches_count_as_use() -> None:
    shard = Shard(4)
    assert shard.run(25, 1.0, kv_use=0.9) == 5


def test_late_first_tokens_ask_for_more_though_there_is_room() -> None:
    rules = replace(RULES, ttft_p95_s=2.0)
    assert Shard(8, rules).run(60, 20.0, tokens=FAST) == 8
    shard = Shard(8, rules)
    assert shard.run(50, 20.0, tokens=SLOW) == 9
    assert "of first tokens came later than 2 s" in shard.state.reason
    assert Shard(8).run(60, 20.0, tokens=SLOW) == 8


def test_one_burst_that_was_late_is_no_reason() -> None:
    shard = Shard(8, replace(RULES, ttft_p95_s=2.0))
    shard.run(60, 5.0)
    shard.see(60.0, SLOW)
    shard.see(60.0, SLOW)
    assert shard.run(100, 5.0) == 8


def test_fewer_only_where_the_promise_would_be_kept() -> None:
    rules = replace(RULES, ttft_p95_s=2.0)
    near: Counts = ((1.5, 80), (2.0, 20))
    assert Shard(8, rules).run(600, 1.0, tokens=near) == 8
    assert Shard(8, rules).run(200, 1.0, tokens=FAST) == 6


def test_a_load_that_grows_steadily_is_met_ahead() -> None:
    def grown_at(bring_up_s: float) -> float:
        shard = Shard(8, bring_up_s=bring_up_s)
        while shard.state.wanted == 8:
            shard.see(25.0 + shard.now_s / 20.0)
        return shard.now_s

    assert grown_at(120.0) < grown_at(1.0) - 60.0


@pytest.mark.parametrize("period_s", [40.0, 200.0, 900.0, 3000.0])
@pytest.mark.parametrize("bring_up_s", [5.0, 60.0])
def test_two_turns_a_wave_at_most(period_s: float, bring_up_s: float) -> None:
    shard = Shard(6, bring_up_s=bring_up_s)
    waves = 6
    shard.run(
        waves * period_s, lambda now_s: 40.0 - 39.0 * math.cos(2 * math.pi * now_s / period_s)
    )
    assert turns(shard.history) <= 2 * waves


class TestZero:
    RULES = replace(RULES, idle_s=60.0)

    def test_none_when_nobody_asks(self) -> None:
        shard = Shard(4, self.RULES)
        shard.run(30, 3.0)
        assert shard.run(55, 0.0) == 4
        assert shard.run(10, 0.0) == 0
        assert "nobody has asked for it for 60 s" in shard.state.reason
        assert shard.run(600, 0.0) == 0

    def test_a_request_wakes_it_at_once_with_as_many_as_it_takes(self) -> None:
        shard = Shard(0, self.RULES)
        shard.run(30, 0.0)
        assert shard.see(1.0) == 1
        many = Shard(0, self.RULES)
        many.run(30, 0.0)
        assert many.see(40.0) == 6

    def test_it_is_not_used_while_engines_are_not_known_to_be_idle(self) -> None:
        shard = Shard(2, self.RULES)
        assert shard.run(300, 0.0, asked=True) >= 1


def test_percentiles_of_buckets() -> None:
    counts: Counts = ((1.0, 50), (2.0, 45), (math.inf, 5), (1.0, 0))
    assert total(counts) == 100
    assert percentile_s(counts, 0.5) == pytest.approx(1.0)
    assert percentile_s(counts, 0.95) == pytest.approx(2.0)
    assert percentile_s(counts, 0.99) == 2.0
    assert share_above(counts, 2.0) == pytest.approx(0.05)
    assert share_above(counts, 1.5) == pytest.approx(0.275)
    assert (percentile_s((), 0.9), share_above((), 1.0)) == (0.0, 0.0)
