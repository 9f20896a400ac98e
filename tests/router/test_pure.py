"""The parts of the router that need neither sockets nor clocks."""

from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter
from collections.abc import Collection

import pytest

from exaslurm.core.canary import Canary
from exaslurm.core.cell import EngineLoad
from exaslurm.registry.replica import Replica
from exaslurm.router.breaker import (
    FAILURES_TO_OPEN,
    FIRST_PATIENCE_S,
    FIRST_WAIT_S,
    MAX_WAIT_S,
    Breaker,
)
from exaslurm.router.budget import RetryBudget
from exaslurm.router.choose import choose
from exaslurm.router.events import EventStream, cut, error_events
from exaslurm.router.reweigh import Weigher
from exaslurm.router.table import Group, Table, Target


def replica(number: int, **changes: object) -> Replica:
    base = Replica(
        id=f"c000-r{number:04}",
        cell="c000",
        model="chat",
        served_names=("chat", "chat:base"),
        url=f"http://127.0.0.1:{20000 + number}",
        node=f"n{number // 4}",
        ready=True,
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def table_of(count: int) -> tuple[Table, Group, list[Target]]:
    table = Table(rng=random.Random(7))
    table.update([replica(number) for number in range(count)])
    group = table.group("chat")
    assert group is not None
    return table, group, list(table.targets)


def pick(
    table: Table, group: Group, now_s: float, tried: Collection[Target], **more: object
) -> Target | None:
    found = table.pick(group, now_s, tried, **more)  # type: ignore[arg-type]
    return None if found is None else found[0]


class TestBreaker:
    def test_opens_after_failures_in_a_row_only(self) -> None:
        breaker = Breaker()
        for _ in range(FAILURES_TO_OPEN - 1):
            assert not breaker.failure(0.0)
        breaker.success()
        for _ in range(FAILURES_TO_OPEN - 1):
            assert not breaker.failure(0.0)
        assert breaker.failure(0.0)
        assert not breaker.closed

    def test_a_failed_probe_doubles_the_wait_up_to_a_limit(self) -> None:
        breaker = Breaker()
        now_s, waits = 0.0, []
        assert breaker.failure(now_s, fatal=True)
        for _ in range(8):
            waits.append(breaker.retry_at_s - now_s)
            assert not breaker.may_probe(breaker.retry_at_s - 0.001)
            now_s = breaker.retry_at_s
            assert breaker.may_probe(now_s)
            breaker.begin_probe(now_s)
            assert not breaker.may_probe(now_s)
            assert breaker.failure(now_s)
        assert waits[:3] == [FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S]
        assert waits[-1] == MAX_WAIT_S

    def test_a_probe_that_says_nothing_lets_another_one_try(self) -> None:
        breaker = Breaker()
        breaker.failure(0.0, fatal=True)
        breaker.begin_probe(1.0)
        assert breaker.abandon_probe(5.0)
        assert breaker.may_probe(5.0)
        assert not breaker.abandon_probe(5.0)

    def test_a_probe_without_a_verdict_lets_others_try_each_later_than_the_last(self) -> None:
        breaker = Breaker()
        breaker.failure(0.0, fatal=True)
        now_s, waits = 1.0, []
        for _ in range(4):
            assert breaker.may_probe(now_s)
            breaker.begin_probe(now_s)
            waits.append(breaker.retry_at_s - now_s)
            assert not breaker.may_probe(breaker.retry_at_s - 0.001)
            now_s = breaker.retry_at_s
        assert waits == [FIRST_PATIENCE_S * times for times in (1, 2, 4, 8)]
        # Whichever has an answer first counts.
        assert breaker.begins_well()
        assert breaker.closed

    def test_of_several_probes_the_first_that_fails_counts_and_one_that_leaves_does_not(
        self,
    ) -> None:
        breaker = Breaker()
        breaker.failure(0.0, fatal=True)
        breaker.begin_probe(1.0)
        breaker.begin_probe(6.0)
        assert breaker.abandon_probe(7.0)
        assert breaker.state == "probing"
        assert breaker.may_probe(7.0)
        breaker.begin_probe(7.0)
        assert breaker.retry_at_s == 7.0 + 2 * FIRST_PATIENCE_S
        assert breaker.failure(8.0)
        assert breaker.retry_at_s == 8.0 + 2 * FIRST_WAIT_S
        assert not breaker.failure(8.5)
        assert not breaker.abandon_probe(8.6)
        assert breaker.retry_at_s == 8.0 + 2 * FIRST_WAIT_S
        # The next one is the first again.
        breaker.begin_probe(20.0)
        assert breaker.retry_at_s == 20.0 + FIRST_PATIENCE_S
        assert breaker.abandon_probe(21.0)
        assert breaker.state == "open"

    def test_late_failures_of_old_requests_do_not_prolong_it(self) -> None:
        breaker = Breaker()
        breaker.failure(0.0, fatal=True)
        retry_at_s = breaker.retry_at_s
        assert not breaker.failure(0.9, fatal=True)
        assert breaker.retry_at_s == retry_at_s
        assert breaker.success()
        assert breaker.closed


class TestBudget:
    def test_is_spent_and_comes_back(self) -> None:
        budget = RetryBudget(reserve=3, per_request=0.5, per_s=1)
        assert [budget.spend(0.0) for _ in range(4)] == [True, True, True, False]
        budget.earn()
        budget.earn()
        assert budget.spend(0.0)
        assert not budget.spend(0.5)
        assert budget.spend(1.0)


class TestChoice:
    def test_balances_by_outstanding_requests(self) -> None:
        table, group, targets = table_of(8)
        for _ in range(8000):
            target = pick(table, group, 0.0, [])
            assert target is not None
            target.outstanding += 1
        loads = [target.outstanding for target in targets]
        assert max(loads) - min(loads) <= 8

    def test_a_loaded_replica_gets_nothing_while_others_are_free(self) -> None:
        _, group, targets = table_of(2)
        targets[0].outstanding = 5
        rng = random.Random(1)
        picked = {choose(group.closed, [], rng) for _ in range(100)}
        assert picked == {targets[1]}

    def test_ties_are_spread(self) -> None:
        table, group, _ = table_of(4)
        picked = Counter(pick(table, group, 0.0, []) for _ in range(4000))
        assert min(picked.values()) > 800

    def test_a_second_attempt_prefers_another_node(self) -> None:
        table, group, targets = table_of(8)  # four to a node
        for _ in range(50):
            again = pick(table, group, 0.0, [targets[0]])
            assert again is not None
            assert again.replica.node == "n1"
        again = pick(table, group, 0.0, targets[1:])
        assert again is targets[0]
        assert pick(table, group, 0.0, targets) is None

    def test_does_not_look_at_every_replica(self) -> None:
        looked_at: list[int] = []

        class Candidates(list[Target]):
            def __getitem__(self, index):  # type: ignore[no-untyped-def]
                looked_at.append(index)
                return super().__getitem__(index)

            def __iter__(self):  # type: ignore[no-untyped-def]
                raise AssertionError("all candidates were walked through")

        _, group, targets = table_of(3072)
        rng = random.Random(1)
        assert choose(Candidates(group.closed), [], rng) is not None
        assert len(looked_at) == 2
        assert choose(Candidates(group.closed), targets[:3], rng) is not None
        assert len(looked_at) < 20


class TestTable:
    def test_an_ejected_replica_is_probed_by_one_request_at_a_time(self) -> None:
        table, group, targets = table_of(3)
        bad = targets[0]
        table.failed(bad, 0.0, fatal=True)
        assert bad not in {pick(table, group, 0.5, []) for _ in range(50)}
        assert pick(table, group, FIRST_WAIT_S, []) is bad
        assert bad not in {pick(table, group, FIRST_WAIT_S, []) for _ in range(50)}
        table.succeeded(bad)
        assert bad in {pick(table, group, FIRST_WAIT_S, []) for _ in range(50)}

    def test_a_probe_is_not_given_to_a_request_that_failed_there(self) -> None:
        table, group, targets = table_of(2)
        table.failed(targets[0], 0.0, fatal=True)
        assert pick(table, group, 5.0, [targets[0]]) is targets[1]
        assert pick(table, group, 5.0, []) is targets[0]

    def test_a_probe_whose_client_left_is_made_again(self) -> None:
        table, group, targets = table_of(2)
        table.failed(targets[0], 0.0, fatal=True)
        assert pick(table, group, 5.0, []) is targets[0]
        table.told_nothing(targets[0], 6.0)
        assert pick(table, group, 6.0, []) is targets[0]

    def test_with_all_ejected_any_is_used(self) -> None:
        table, group, targets = table_of(3)
        for target in targets:
            table.failed(target, 0.0, fatal=True)
        assert {pick(table, group, 0.0, []) for _ in range(50)} == set(targets)
        assert pick(table, group, 0.0, targets[:2]) is targets[2]

    def test_news_keep_counts_and_reset_what_is_newly_ready(self) -> None:
        table, group, targets = table_of(2)
        targets[0].outstanding = 3
        table.failed(targets[0], 0.0, fatal=True)
        table.update([replica(0, ready=False), replica(1)])
        assert group.usable == [targets[1]]
        table.update([replica(0), replica(1)])
        assert group.closed == targets
        assert targets[0].outstanding == 3
        table.update([replica(0, url="http://127.0.0.1:9"), replica(1)])
        assert next(iter(table.targets)).outstanding == 0
        table.update([])
        assert table.names == []
        assert table.group("chat") is None

    def test_what_takes_no_requests_is_left_out(self) -> None:
        table, group, targets = table_of(4)
        table.update(
            [
                replica(0, draining=True),
                replica(1, sleeping=True),
                replica(2, ready=False),
                replica(3),
            ]
        )
        assert group.closed == [targets[3]]
        assert len(group.members) == 4

    def test_one_shard_is_what_a_request_without_a_model_means(self) -> None:
        table, group, _ = table_of(2)
        assert table.only_group() is group
        table.update([replica(0), replica(1, served_names=("other",))])
        assert table.only_group() is None


class TestFailureDomains:
    def test_a_retry_goes_as_far_away_as_it_can(self) -> None:
        table = Table(rng=random.Random(7))
        table.update(
            [
                replica(0, node="a", switch="s1"),
                replica(1, node="a", switch="s1"),
                replica(2, node="b", switch="s1"),
                replica(3, node="c", switch="s2"),
                replica(4, node="d", switch="s3", cell="c001"),
            ]
        )
        group = table.group("chat")
        assert group is not None
        first, second, third, fourth, fifth = table.targets
        order, tried = [], [first]
        while (again := pick(table, group, 0.0, tried)) is not None:
            order.append(again)
            tried.append(again)
        assert order == [fifth, fourth, third, second]


class TestWeights:
    @pytest.mark.parametrize(("weight", "low", "high"), [(2.0, 0.6, 0.72), (0.0, 0.0, 0.03)])
    def test_a_replica_is_filled_by_its_weight(
        self, weight: float, low: float, high: float
    ) -> None:
        table = Table(rng=random.Random(7))
        table.update([replica(0, weight=weight), replica(1)])
        group = table.group("chat")
        assert group is not None
        weighted, _ = table.targets
        weigher = Weigher()
        served = []
        running: list[Target] = []
        for step in range(4000):
            if step % 5 == 0:
                weigher.weigh(table.groups, step / 10)
            target = pick(table, group, 0.0, [])
            assert target is not None
            target.outstanding += 1
            running.append(target)
            served.append(target)
            if len(running) > 60:
                running.pop(0).outstanding -= 1
        assert low <= served.count(weighted) / len(served) <= high

    def test_one_of_weight_0_is_no_measure_of_what_is_usual(self) -> None:
        """A session never left its replica, however loaded that was."""
        table = Table(rng=random.Random(7))
        table.update([replica(n, weight=float(n > 0)) for n in range(8)])
        group = table.group("chat")
        assert group is not None
        weigher = Weigher()
        counts: Counter[Target] = Counter()
        for _ in range(400):
            weigher.weigh(table.groups, 1.0)
            found = table.pick(group, 0.0, (), session=12345678901234567)
            assert found is not None
            found[0].outstanding += 1
            counts[found[0]] += 1
        assert max(counts.values()) < 100

    def test_who_was_slow_among_many_is_not_for_ever(self) -> None:
        table = Table(rng=random.Random(7))
        table.update([replica(n) for n in range(3)])
        for target in table.targets:
            target.latency_s = 1.0
        slow = next(iter(table.targets))
        slow.latency_s = 20.0
        slow.outstanding = 50
        weigher = Weigher()
        weigher.weigh(table.groups, 1.0)
        assert slow.penalty > 100
        slow.outstanding = 0
        # Two do not show which of them is the odd one, and their engines tell no figures.
        table.update([replica(n) for n in range(2)])
        weigher.weigh(table.groups, 2.0)
        assert slow.penalty == 0


class TestLongPrompts:
    def test_only_a_replica_that_takes_so_many_tokens_gets_it(self) -> None:
        table = Table(rng=random.Random(7))
        table.update([replica(n, max_model_len=100_000 if n == 5 else 4096) for n in range(8)])
        group = table.group("chat")
        assert group is not None
        assert group.longest == 100_000
        big = list(table.targets)[5]
        assert {pick(table, group, 0.0, [], tokens=5000) for _ in range(50)} == {big}
        assert len({pick(table, group, 0.0, [], tokens=10) for _ in range(200)}) == 8

    def test_a_full_cache_is_avoided_while_another_has_room(self) -> None:
        table = Table(rng=random.Random(7))
        table.update([replica(n, max_model_len=100_000) for n in range(4)])
        group = table.group("chat")
        assert group is not None
        table.loads(
            {f"c000-r{n:04}": EngineLoad(running=1, waiting=0, kv_use=0.99) for n in range(3)}, 0.0
        )
        free = list(table.targets)[3]
        assert {pick(table, group, 0.0, [], tokens=50_000) for _ in range(50)} == {free}


class TestCanary:
    def versions(self, canary: Canary) -> tuple[Table, Group]:
        table = Table(rng=random.Random(7), canary=canary)
        table.update([replica(n, version="v2" if n < 2 else "v1") for n in range(8)])
        group = table.group("chat")
        assert group is not None
        return table, group

    def share(self, table: Table, group: Group, keys: int, each: int = 1) -> float:
        versions = []
        for key in range(keys):
            for _ in range(each):
                target = pick(table, group, 0.0, [], key_name=f"key{key}")
                assert target is not None
                versions.append(target.replica.version)
        return versions.count("v2") / len(versions)

    def test_requests_are_divided_by_weight(self) -> None:
        table, group = self.versions(Canary(weights={"chat": {"v1": 9, "v2": 1}}, by="random"))
        assert 0.08 < self.share(table, group, 1, 5000) < 0.12

    def test_a_key_stays_with_its_version(self) -> None:
        table, group = self.versions(Canary(weights={"chat": {"v1": 0.8, "v2": 0.2}}))
        shares = {self.share(table, group, 1, 50)}
        assert shares <= {0.0, 1.0}
        assert 0.15 < self.share(table, group, 5000) < 0.25
        table.divide(Canary(weights={"chat": {"v1": 1.0, "v2": 0.0}}))
        assert self.share(table, group, 1000) == 0.0

    def test_a_version_without_replicas_refuses_nobody(self) -> None:
        table, group = self.versions(Canary(weights={"chat": {"v2": 1.0}}))
        assert self.share(table, group, 200) == 1.0
        table.update([replica(n, version="v2" if n < 2 else "v1", ready=n >= 2) for n in range(8)])
        assert self.share(table, group, 200) == 0.0


class TestEventStream:
    def test_an_event_ends_where_an_empty_line_is(self) -> None:
        assert cut(b"data: 1\n\ndata: 2") == 9
        assert cut(b"data: 1\r\n\r\ndata: 2\r\n") == 11
        assert cut(b"data: 1\n\n") == 9
        assert cut(b"data: 1\n") == 0

    @pytest.mark.parametrize("line", [b"\n", b"\r\n", b"\r"])
    @pytest.mark.parametrize("empty", [b"\n", b"\r\n", b"\r"])
    def test_whatever_ends_a_line(self, line: bytes, empty: bytes) -> None:
        if line + empty == b"\r\n":
            return  # one end
        event = b"data: 1" + line + empty
        assert cut(event) == len(event)
        assert cut(event + b"data: 2") == len(event)
        assert cut(event + b"data: 2" + line) == len(event)
        stream = EventStream("/v1/completions")
        stream.passed(event + b'data: {"error":{"code":500}}' + line + empty)
        assert stream.error
        assert stream.broken("lost").startswith(b"data: ")

    def test_an_endless_event_is_not_kept_in_memory(self) -> None:
        piece = b"x" * 300_000
        assert cut(piece) == len(piece)
        stream = EventStream("/v1/completions")
        stream.passed(piece)
        assert stream.broken("lost").startswith(b"\n\ndata: ")

    @pytest.mark.parametrize(("code", "error"), [(500, True), (400, False), (404, False)])
    def test_error_events_are_seen(self, code: int, error: bool) -> None:
        stream = EventStream("/v1/completions")
        body = json.dumps({"error": {"message": "x", "type": "t", "param": None, "code": code}})
        stream.passed(b"data: 1\n\ndata: " + body.encode() + b"\n\n")
        assert stream.error == error

    def test_text_that_looks_like_an_error_is_none(self) -> None:
        stream = EventStream("/v1/completions")
        stream.passed(b'data: {"text": "data: {\\"error\\": 1}"}\n\n')
        assert not stream.error

    def test_every_api_has_its_own_error(self) -> None:
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses"):
            text = error_events(path, 'a "quoted" message').decode()
            data = next(line for line in text.split("\n") if line.startswith("data: "))
            assert 'a "quoted" message' in json.dumps(json.loads(data[6:])).replace('\\"', '"')
            assert text.endswith("\n\n")
