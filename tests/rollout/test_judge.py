"""The rule is right if an equal version is hardly ever called worse, and a worse one nearly always:
shown by simulating whole rollouts, looked at every ten seconds as the supervisor does."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from dataclasses import replace

import pytest

from exaslurm.core.rollout import Answers, Pair, RolloutPolicy
from exaslurm.rollout.judge import (
    added,
    binomial,
    fisher,
    is_fair,
    rank_sum,
    since,
    why_worse,
)
from exaslurm.router.metrics import BUCKETS_S

POLICY = RolloutPolicy()
EMPTY = (0,) * (len(BUCKETS_S) + 1)
# Requests a second, seconds a step, looks.
RATE, HOLD_S, LOOK_S = 6.0, 120, 10


class Version:
    """Answers that take a log-normal time and fail by chance."""

    def __init__(self, rng: random.Random, *, first_s: float, spread: float, fails: float) -> None:
        self.rng, self.first_s, self.spread, self.fails = rng, first_s, spread, fails

    def answer(self, answers: Answers, count: int) -> Answers:
        first, whole = list(EMPTY), list(EMPTY)
        first_s = whole_s = 0.0
        failed = 0
        for _ in range(count):
            failed += self.rng.random() < self.fails
            one_s = self.first_s * math.exp(self.rng.gauss(0.0, self.spread))
            # The whole answer: as many tokens as its prompt wants, at the same pace.
            all_s = one_s * (1 + 10 * self.rng.expovariate(1.0))
            first[bisect_left(BUCKETS_S, one_s)] += 1
            whole[bisect_left(BUCKETS_S, all_s)] += 1
            first_s, whole_s = first_s + one_s, whole_s + all_s
        fresh = Answers(
            requests=count, failed=failed, first=tuple(first), first_s=first_s,
            whole=tuple(whole), whole_s=whole_s,
        )  # fmt: skip
        return added(answers, fresh)


def stopped_at(old: Version, new: Version, rng: random.Random) -> float | None:
    """In which step a rollout is stopped; None: it goes through."""
    for share in POLICY.steps_percent:
        pair = Pair(old=Answers(first=EMPTY, whole=EMPTY), new=Answers(first=EMPTY, whole=EMPTY))
        for _ in range(HOLD_S // LOOK_S):
            count = int(RATE * LOOK_S)
            to_new = sum(rng.random() * 100 < share for _ in range(count))
            pair = Pair(old=old.answer(pair.old, count - to_new), new=new.answer(pair.new, to_new))
            fair = is_fair(share, 1, 1)
            if why_worse("chat", pair, POLICY, fair=fair) is not None:
                return share
    return None


def share_stopped(
    runs: int, *, slower: float = 1.0, fails: float = 0.0, base: float = 0.0
) -> float:
    """Of so many rollouts, the share that was stopped. The old one's times have every place in
    their buckets in turn, and spread from hardly to widely."""
    stopped = 0
    for number in range(runs):
        rng = random.Random(number)
        first_s = 0.05 * 2 ** (number % 10 / 5)
        spread = (0.05, 0.3, 1.0)[number % 3]
        old = Version(rng, first_s=first_s, spread=spread, fails=base)
        new = Version(rng, first_s=first_s * slower, spread=spread, fails=base + fails)
        stopped += stopped_at(old, new, rng) is not None
    return stopped / runs


@pytest.mark.parametrize("base", [0.0, 0.01])
def test_an_equal_version_hardly_ever_is_stopped(base: float) -> None:
    assert share_stopped(120, base=base) <= 1 / 120


def test_one_that_is_hardly_slower_is_not_stopped() -> None:
    """Ten percent are certain with so many requests, and too little to matter."""
    assert share_stopped(60, slower=1.1) <= 0.1


@pytest.mark.parametrize(
    ("slower", "fails"), [(2.0, 0.0), (1.0, 0.05)], ids=["twice as slow", "5 % fail"]
)
def test_a_worse_version_nearly_always_is(slower: float, fails: float) -> None:
    assert share_stopped(60, slower=slower, fails=fails) >= 59 / 60
    assert share_stopped(60, slower=slower, fails=fails, base=0.005) >= 59 / 60


def test_it_is_stopped_before_it_has_everything() -> None:
    rng = random.Random(7)
    old = Version(rng, first_s=0.2, spread=0.5, fails=0.0)
    assert stopped_at(old, Version(rng, first_s=0.2, spread=0.5, fails=1.0), rng) == 5
    slow = stopped_at(old, Version(rng, first_s=0.6, spread=0.5, fails=0.0), rng)
    assert slow is not None
    assert slow <= 25


def test_the_edge_of_a_bucket_is_no_difference() -> None:
    """49 and 51 ms lie in different buckets; all ranks differ, the means hardly."""
    old, new = list(EMPTY), list(EMPTY)
    old[bisect_left(BUCKETS_S, 0.049)] = new[bisect_left(BUCKETS_S, 0.051)] = 500
    pair = Pair(
        old=Answers(requests=500, first=tuple(old), first_s=24.5, whole=EMPTY),
        new=Answers(requests=500, first=tuple(new), first_s=25.5, whole=EMPTY),
    )
    assert rank_sum(old, new) > 20
    assert why_worse("chat", pair, POLICY, fair=True) is None
    slow = replace(pair, new=replace(pair.new, first_s=50.0))
    said = why_worse("chat", slow, POLICY, fair=True)
    assert said is not None
    assert "0.1 s with the new version and 0.049 s with the old" in said
    assert why_worse("chat", slow, POLICY, fair=False) is None


def test_few_answers_say_nothing_about_times() -> None:
    old, new = list(EMPTY), list(EMPTY)
    old[3], new[10] = 500, 29
    pair = Pair(
        old=Answers(requests=500, first=tuple(old), first_s=15, whole=EMPTY),
        new=Answers(requests=29, first=tuple(new), first_s=200, whole=EMPTY),
    )
    assert why_worse("chat", pair, POLICY, fair=True) is None


def test_failures() -> None:
    def said(bad0: int, all0: int, bad1: int, all1: int, field: str = "failed") -> str | None:
        old = replace(Answers(requests=all0), **{field: bad0})
        new = replace(Answers(requests=all1), **{field: bad1})
        return why_worse("chat", Pair(old=old, new=new), POLICY, fair=False)

    assert said(0, 950, 4, 50) == (
        "chat: 4 of 50 requests to the new version (0 of 950 of the old one) failed"
    )
    assert said(0, 950, 4, 50, "refused") is not None
    assert said(0, 950, 2, 50) is None  # two may be one event
    assert said(400, 950, 25, 50) is None  # both fail
    assert said(0, 100_000, 500, 100_000) is None  # certain, and below what matters
    # With nothing to compare with it must be plain.
    assert said(0, 0, 3, 5) is not None
    assert said(0, 0, 3, 100) is None
    assert said(0, 0, 0, 0) is None


def test_exact_chances() -> None:
    assert fisher(0, 10, 10, 10) == pytest.approx(1 / math.comb(20, 10))
    assert fisher(5, 10, 0, 10) == pytest.approx(1.0)
    assert fisher(1, 9, 1, 1) == pytest.approx(2 / 10)
    assert binomial(1, 3, 0.5) == pytest.approx(7 / 8)
    assert binomial(0, 3, 0.5) == pytest.approx(1.0)


def test_ranks() -> None:
    assert rank_sum((5, 5), (5, 5)) == 0.0
    assert rank_sum((100, 0), (0, 100)) == pytest.approx(-rank_sum((0, 100), (100, 0)))
    assert rank_sum((100, 0), (0, 100)) > 10
    assert rank_sum((10, 0), (10, 0)) == 0.0


def test_times_are_compared_while_it_has_no_more_to_do() -> None:
    assert is_fair(50, 1, 1)
    assert not is_fair(75, 1, 1)
    assert is_fair(25, 1, 2)
    assert not is_fair(50, 1, 2)
    assert is_fair(50, 8, 9)
    assert not is_fair(100, 1, 0)


def test_counters_that_begin_anew() -> None:
    before = Answers(requests=10, first=(4, 6), first_s=3.0, whole=(), whole_s=0.0)
    now = Answers(requests=13, first=(6, 7), first_s=4.0)
    assert since(now, before) == Answers(requests=3, first=(2, 1), first_s=1.0)
    assert since(Answers(requests=2, first=(1, 1), first_s=1.0), before).requests == 2
    assert since(now, Answers()) == now
