"""Prefix affinity: what it may choose, how it spreads, what it remembers."""

from __future__ import annotations

import gc
import os
import random
import statistics
import weakref
from collections import Counter, deque
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from benchmarks import caches, policies
from exaslurm.router.affinity import LOAD_FACTOR, LOAD_SLACK, Affinity
from exaslurm.router.choose import choose
from exaslurm.router.prefixes import CAPACITY


class Target:
    domains = ("", "", "")

    def __init__(self, number: int, outstanding: int = 0, penalty: float = 0.0) -> None:
        self.ident = f"r{number:04}"
        self.outstanding = outstanding
        self.penalty = penalty
        self.closed = True

    def __repr__(self) -> str:
        return self.ident


def prompt(*parts: object) -> list[int]:
    """A chain of block hashes: equal as far as the parts are."""
    keys: list[int] = []
    for part in parts:
        keys.append(xxh3_64_intdigest(repr(part).encode(), keys[-1] if keys else 0))
    return keys


def pool(count: int) -> tuple[Affinity[Target], list[Target]]:
    affinity: Affinity[Target] = Affinity()
    targets = [Target(number) for number in range(count)]
    affinity.retain(targets)
    return affinity, targets


def send(
    affinity: Affinity[Target], keys: list[int], targets: Collection[Target], rng: random.Random
) -> Target:
    """As the router does: affinity, or the less loaded of two."""
    target = affinity.choose(keys, rng) or choose(list(targets), (), rng)
    assert target is not None
    affinity.sent(keys, target)
    return target


# What may be chosen


class Step:
    """Random events around an `Affinity`, and what must hold after each choice."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.affinity: Affinity[Target] = Affinity(capacity=64)
        self.rng = random.Random(data.draw(st.integers(0, 1000)))
        self.known: list[Target] = []
        self.number = 0

    def run(self) -> None:
        move = self.data.draw(st.sampled_from(["join", "leave", "eject", "restart"] + ["ask"] * 6))
        if move == "join":
            self.number += 1
            target = Target(self.number, self.data.draw(st.integers(0, 9)))
            self.known.append(target)
            self.affinity.retain(self.known)
        elif move == "ask":
            self.ask()
        elif self.known:
            target = self.data.draw(st.sampled_from(self.known))
            if move == "restart":
                self.affinity.forget(target)
            elif move == "eject":
                target.closed = not target.closed
            else:
                self.known.remove(target)
                self.affinity.retain(self.known)

    def ask(self) -> None:
        keys = prompt(*self.data.draw(st.lists(st.integers(0, 2), max_size=6)))
        tried = self.data.draw(st.lists(st.sampled_from(self.known))) if self.known else []
        odd = self.data.draw(st.booleans())
        fits = (lambda target: int(target.ident[1:]) % 2 == 1) if odd else None
        if keys and self.data.draw(st.booleans()):
            target = self.affinity.stay(keys[0], self.rng, tried, fits)
        else:
            target = self.affinity.choose(keys, self.rng, tried, fits)
        if target is not None:
            assert target in self.known
            assert target.closed
            assert target not in tried
            assert fits is None or fits(target)
        elif self.known:
            target = self.data.draw(st.sampled_from(self.known))
        if target is not None:
            target.outstanding = self.data.draw(st.integers(0, 9))
            self.affinity.sent(keys, target)
        assert self.affinity.entries <= 64 + 16


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_never_one_that_is_gone_or_unusable_or_was_tried_or_does_not_fit(
    data: st.DataObject,
) -> None:
    step = Step(data)
    for _ in range(data.draw(st.integers(1, 40))):
        step.run()


def test_nothing_to_say_without_keys_or_replicas_or_room() -> None:
    rng = random.Random(1)
    empty: Affinity[Target] = Affinity()
    assert empty.choose(prompt(1), rng) is None
    empty.sent(prompt(1), Target(1))
    affinity, targets = pool(3)
    assert affinity.choose([], rng) is None
    assert affinity.choose(prompt(1), rng, targets) is None
    assert affinity.choose(prompt(1), rng, (), lambda _: False) is None
    for target in targets:
        target.closed = False
    assert affinity.choose(prompt(1), rng) is None


# Following


def test_a_conversation_stays_where_it_was() -> None:
    affinity, targets = pool(32)
    rng = random.Random(2)
    for number in range(50):
        chosen = {
            send(affinity, prompt(number, *range(turn * 3 + 1)), targets, rng) for turn in range(12)
        }
        assert len(chosen) == 1


@pytest.mark.parametrize("head", [0, 1, 2, 5, 20, 60])
def test_conversations_are_told_apart_behind_a_head_that_all_share(head: int) -> None:
    """The depth at which prompts branch is found: every conversation is followed, and they are
    spread, however long the common system prompt is."""
    affinity, targets = pool(16)
    rng = random.Random(3)
    common = [f"head {index}" for index in range(head)]
    warm, count = 300, 400
    homes: dict[int, Target] = {}
    stayed = 0
    for number in range(warm + count):
        if number >= warm + 8:  # The next turn of one that began a while ago.
            keys = prompt(*common, number - 8, *range(9))
            stayed += send(affinity, keys, targets, rng) is homes[number - 8]
        homes[number] = send(affinity, prompt(*common, number, *range(3)), targets, rng)
    assert stayed >= 0.95 * (count - 8)
    loads = Counter(homes[number] for number in range(warm, warm + count))
    assert len(loads) == 16
    assert max(loads.values()) <= 1.6 * count / 16


def test_routers_that_share_nothing_agree_on_prompts_they_have_not_seen() -> None:
    one, targets = pool(300)
    other: Affinity[Target] = Affinity()
    other.retain(random.Random(4).sample(targets, 300))
    for number in range(500):
        keys = prompt(number, 1, 2)
        there = other.choose(keys, random.Random(number))
        assert one.choose(keys, random.Random(-number)) is there is not None


def test_they_agree_behind_a_head_that_all_share() -> None:
    """Each has found the depth at which prompts branch; not by the head alone do they agree."""
    targets = [Target(number) for number in range(64)]
    routers: list[Affinity[Target]] = [Affinity(), Affinity()]
    rng = random.Random(16)
    head = [f"head {index}" for index in range(20)]
    for name, affinity in enumerate(routers):
        affinity.retain(targets)
        for number in range(1000):
            send(affinity, prompt(*head, (name, number), 1, 2), targets, rng)
    agreed: Counter[Target | None] = Counter()
    for number in range(500):
        keys = prompt(*head, ("new", number), 1, 2)
        one, two = (affinity.choose(keys, rng) for affinity in routers)
        agreed[one] += one is two
    assert agreed.total() >= 300
    assert len(+agreed) >= 32


def test_a_replica_more_or_less_moves_few_prompts() -> None:
    affinity, targets = pool(100)
    rng = random.Random(5)
    before = {n: affinity.choose(prompt(n), rng) for n in range(2000)}
    affinity.retain(targets[1:])
    fewer = {n: affinity.choose(prompt(n), rng) for n in range(2000)}
    assert {before[n] for n in before if before[n] is not fewer[n]} == {targets[0]}
    affinity.retain(targets)
    assert {n: affinity.choose(prompt(n), rng) for n in range(2000)} == before
    newcomer = Target(999)
    affinity.retain([*targets, newcomer])
    more = {n: affinity.choose(prompt(n), rng) for n in range(2000)}
    moved = [n for n in before if before[n] is not more[n]]
    assert 0 < len(moved) < 100
    assert {more[n] for n in moved} == {newcomer}


def test_a_session_stays_in_every_router_until_its_replica_is_loaded() -> None:
    one, targets = pool(300)
    other: Affinity[Target] = Affinity()
    other.retain(targets[::-1])
    rng = random.Random(18)
    sessions = [prompt("session", number)[-1] for number in range(3000)]
    homes = [one.stay(session, rng) for session in sessions]
    assert None not in homes
    assert homes == [other.stay(session, rng) for session in sessions]
    assert len(set(homes)) > 280
    busy = homes[0]
    assert busy is not None
    busy.outstanding = 100
    moved = one.stay(sessions[0], rng)
    assert moved not in (None, busy)
    assert one.stay(sessions[0], rng, [moved]) not in (None, busy, moved)  # type: ignore[list-item]
    busy.outstanding = 1
    assert one.stay(sessions[0], rng) is busy
    assert Affinity[Target]().stay(1, rng) is None


def test_an_ejected_replica_gets_its_conversations_back() -> None:
    affinity, targets = pool(20)
    rng = random.Random(6)
    keys = prompt("long", *range(50))
    first = send(affinity, keys, targets, rng)
    first.closed = False
    assert affinity.choose(keys, rng) not in (None, first)
    first.closed = True
    assert affinity.choose(keys, rng) is first


def test_what_a_restarted_replica_had_is_forgotten() -> None:
    affinity, targets = pool(20)
    rng = random.Random(7)
    keys = prompt("long", *range(50))
    home = affinity.choose(keys, rng)
    other = next(target for target in targets if target is not home)
    affinity.sent(keys, other)
    assert affinity.choose(keys, rng) is other
    affinity.forget(other)
    assert affinity.choose(keys, rng) is home


def test_what_the_caches_have_no_room_for_is_forgotten() -> None:
    affinity, targets = pool(20)
    rng = random.Random(8)
    keys = prompt("old", *range(15))  # 16 blocks of 256 bytes
    home = affinity.choose(keys, rng)
    other = next(target for target in targets if target is not home)
    affinity.room = 100 * 16 * 256.0
    affinity.sent(keys, other)
    for number in range(50):
        send(affinity, prompt(number, *range(15)), targets, rng)
    assert affinity.choose(keys, rng) is other
    for number in range(200):
        send(affinity, prompt(-number, *range(15)), targets, rng)
    assert affinity.choose(keys, rng) is not other


# Load


def closed_loop(
    affinity: Affinity[Target],
    targets: list[Target],
    prompts: Iterator[list[int]],
    in_flight: int,
    rounds: int,
    rng: random.Random,
) -> Counter[Target]:
    """Keep so many requests in flight, ended in the order of a shuffled queue; what is in flight
    at each replica may never exceed the bound by more than the error of a sampled mean."""
    running: deque[Target] = deque()
    counts: Counter[Target] = Counter()
    bound = LOAD_FACTOR * in_flight / len(targets) + LOAD_SLACK
    for number in range(rounds):
        if len(running) == in_flight:
            running.rotate(rng.randrange(8))
            running.popleft().outstanding -= 1
        target = send(affinity, next(prompts), targets, rng)
        target.outstanding += 1
        running.append(target)
        counts[target] += 1
        if number > 2 * in_flight:
            assert target.outstanding <= 1.2 * bound + 1
    return counts


@pytest.mark.parametrize("in_flight", [64, 640, 3200])
def test_a_hot_prompt_gets_as_many_owners_as_it_needs(in_flight: int) -> None:
    affinity, targets = pool(64)
    rng = random.Random(9)
    hot = prompt("hot", *range(30))
    counts = closed_loop(affinity, targets, iter(lambda: hot, None), in_flight, 20_000, rng)
    assert len(counts) > 8
    assert max(counts.values()) <= 8 * 20_000 / 64


def test_a_prompt_that_is_not_hot_has_one_owner() -> None:
    affinity, targets = pool(64)
    rng = random.Random(10)
    calm = prompt("calm", *range(30))
    counts = closed_loop(affinity, targets, iter(lambda: calm, None), 3, 2000, rng)
    assert len(counts) <= 2  # A second one after hundreds: its share of work counts too.


def test_equal_loads_are_spread() -> None:
    """Requests that end at once leave every replica with the same load: none gets them all."""
    affinity, targets = pool(16)
    rng = random.Random(11)
    counts = Counter(send(affinity, prompt(n, 1), targets, rng) for n in range(8000))
    assert max(counts.values()) <= 1.15 * 8000 / 16


def test_a_choice_looks_at_a_few_replicas_however_many_there_are() -> None:
    looked = 0

    class Watched(Target):
        @property
        def outstanding(self) -> int:
            nonlocal looked
            looked += 1
            return 1

        @outstanding.setter
        def outstanding(self, value: int) -> None:
            pass

    affinity: Affinity[Target] = Affinity()
    targets: list[Target] = [Watched(number) for number in range(3072)]
    affinity.retain(targets)
    rng = random.Random(17)
    for number in range(500):
        keys = prompt("head", number % 50, *range(number % 7))
        before = looked
        target = affinity.choose(keys, rng)
        assert looked - before <= 8
        affinity.sent(keys, target or targets[0])


def test_replicas_that_are_slow_get_less() -> None:
    affinity, targets = pool(16)
    for target in targets[:4]:
        target.penalty = 30.0
    rng = random.Random(12)
    counts = Counter(send(affinity, prompt(n, 1), targets, rng) for n in range(2000))
    assert sum(counts[target] for target in targets[:4]) <= 10


def test_a_new_replica_is_not_given_everything() -> None:
    affinity, targets = pool(8)
    rng = random.Random(13)
    for number in range(20_000):  # Long enough for the accounts to be scaled down.
        send(affinity, prompt(number, 1), targets, rng)
    targets.append(Target(8))
    affinity.retain(targets)
    counts = Counter(send(affinity, prompt(-n, 1), targets, rng) for n in range(1, 901))
    assert 40 <= counts[targets[8]] <= 160
    assert max(counts.values()) <= 160


# Memory


def test_memory_is_bounded_under_a_million_prompts() -> None:
    affinity, targets = pool(64)
    before = resident_bytes()
    key = 0
    for number in range(1_000_000):
        key = (key * 6364136223846793005 + 1442695040888963407) % 2**64
        affinity.sent([key, key ^ 1, key ^ 2, key ^ 3], targets[number % 64])
    assert affinity.entries <= CAPACITY + 16
    assert resident_bytes() - before < 24e6


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_a_long_conversation_takes_few_entries() -> None:
    affinity: Affinity[Target] = Affinity(extents=range(0, 500_000, 1000))
    targets = [Target(number) for number in range(4)]
    affinity.retain(targets)
    rng = random.Random(14)
    for turn in range(1, 400):
        send(affinity, prompt("talk", *range(turn)), targets, rng)
    assert affinity.entries < 30


def test_replicas_that_left_are_let_go() -> None:
    affinity, targets = pool(50)
    rng = random.Random(15)
    for number in range(500):
        send(affinity, prompt(number, 1, 2), targets, rng)
    left = [weakref.ref(target) for target in targets[:25]]
    del targets[:25]
    affinity.retain(targets)
    gc.collect()
    assert [ref() for ref in left] == [None] * 25
    assert {send(affinity, prompt(n, 1, 2), targets, rng) for n in range(500)} == set(targets)


# A real trace


@pytest.fixture(scope="module")
def trace() -> list[caches.Request]:
    folder = os.environ.get("EXASLURM_DATA")
    if not folder:
        pytest.skip(f"EXASLURM_DATA does not name a folder with {caches.TRACE}")
    return caches.load(Path(folder))


def test_many_caches_find_what_one_pooled_cache_would(trace: list[caches.Request]) -> None:
    size, count = 1000, 16

    def run(policy: type[policies.Ours] | type[policies.Greedy], seed: int) -> caches.Outcome:
        engines = [caches.Engine(number, size) for number in range(count)]
        return caches.replay(trace, engines, policy(engines, size, seed), caches.Timing())

    pooled = caches.pooled(trace, size * count)
    assert round(pooled * 100, 1) == 25.6
    greedy = run(policies.Greedy, 0).hits
    assert round(greedy * 100) == 22
    ours = [run(policies.Ours, seed) for seed in range(3)]
    for outcome in ours:
        assert outcome.hits >= 0.95 * pooled
        assert outcome.hits > greedy
        assert outcome.imbalance <= 1.25
    assert statistics.median(outcome.ttft_median_s for outcome in ours) < 2.6
