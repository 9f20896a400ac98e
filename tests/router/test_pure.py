"""The parts of the router that need neither sockets nor clocks."""

from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter

import pytest

from exaslurm.registry.replica import Replica
from exaslurm.router.breaker import FAILURES_TO_OPEN, FIRST_WAIT_S, MAX_WAIT_S, Breaker
from exaslurm.router.budget import RetryBudget
from exaslurm.router.choose import choose
from exaslurm.router.events import EventStream, error_events
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
    table = Table(random.Random(7))
    table.update([replica(number) for number in range(count)])
    group = table.group("chat")
    assert group is not None
    return table, group, list(table.targets)


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
            breaker.begin_probe()
            assert not breaker.may_probe(now_s)
            assert breaker.failure(now_s)
        assert waits[:3] == [FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S]
        assert waits[-1] == MAX_WAIT_S

    def test_a_probe_that_says_nothing_lets_another_one_try(self) -> None:
        breaker = Breaker()
        breaker.failure(0.0, fatal=True)
        breaker.begin_probe()
        assert breaker.abandon_probe(5.0)
        assert breaker.may_probe(5.0)
        assert not breaker.abandon_probe(5.0)

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
            target = table.pick(group, 0.0, [])
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
        picked = Counter(table.pick(group, 0.0, []) for _ in range(4000))
        assert min(picked.values()) > 800

    def test_a_second_attempt_prefers_another_node(self) -> None:
        table, group, targets = table_of(8)  # four to a node
        for _ in range(50):
            again = table.pick(group, 0.0, [targets[0]])
            assert again is not None
            assert again.node == "n1"
        again = table.pick(group, 0.0, targets[1:])
        assert again is targets[0]
        assert table.pick(group, 0.0, targets) is None

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
        assert bad not in {table.pick(group, 0.5, []) for _ in range(50)}
        assert table.pick(group, FIRST_WAIT_S, []) is bad
        assert bad not in {table.pick(group, FIRST_WAIT_S, []) for _ in range(50)}
        table.succeeded(bad)
        assert bad in {table.pick(group, FIRST_WAIT_S, []) for _ in range(50)}

    def test_a_probe_is_not_given_to_a_request_that_failed_there(self) -> None:
        table, group, targets = table_of(2)
        table.failed(targets[0], 0.0, fatal=True)
        assert table.pick(group, 5.0, [targets[0]]) is targets[1]
        assert table.pick(group, 5.0, []) is targets[0]

    def test_a_probe_whose_client_left_is_made_again(self) -> None:
        table, group, targets = table_of(2)
        table.failed(targets[0], 0.0, fatal=True)
        assert table.pick(group, 5.0, []) is targets[0]
        table.told_nothing(targets[0], 6.0)
        assert table.pick(group, 6.0, []) is targets[0]

    def test_with_all_ejected_any_is_used(self) -> None:
        table, group, targets = table_of(3)
        for target in targets:
            table.failed(target, 0.0, fatal=True)
        assert {table.pick(group, 0.0, []) for _ in range(50)} == set(targets)
        assert table.pick(group, 0.0, targets[:2]) is targets[2]

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


class TestEventStream:
    TEXT = b'data: {"a": "\xc3\xa9"}\n\ndata: {"b": 2}\n\ndata: [DONE]\n\n'

    @pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
    def test_bytes_pass_unchanged_however_they_are_cut(self, size: int) -> None:
        stream = EventStream("/v1/completions")
        passed = [stream.feed(self.TEXT[at : at + size]) for at in range(0, len(self.TEXT), size)]
        rest, whole = stream.finish()
        assert b"".join(passed) + rest == self.TEXT
        assert all(piece.endswith(b"\n\n") for piece in passed if piece)
        assert whole
        assert not stream.error
        assert stream.broken("late") == b""

    def test_other_line_ends_pass_too(self) -> None:
        stream = EventStream("/v1/messages")
        assert stream.feed(b"data: 1\r\n\r\ndata: 2\r\n") == b"data: 1\r\n\r\n"
        assert stream.feed(b"\r\n") == b"data: 2\r\n\r\n"

    def test_an_endless_event_is_not_kept_in_memory(self) -> None:
        stream = EventStream("/v1/completions")
        piece = b"x" * 100_000
        passed = sum(len(stream.feed(piece)) for _ in range(20))
        assert passed >= 1_700_000
        assert stream.broken("lost").startswith(b"\n\ndata: ")

    @pytest.mark.parametrize(("code", "error"), [(500, True), (400, False), (404, False)])
    def test_error_events_are_seen(self, code: int, error: bool) -> None:
        stream = EventStream("/v1/completions")
        body = json.dumps({"error": {"message": "x", "type": "t", "param": None, "code": code}})
        stream.feed(b"data: 1\n\ndata: " + body.encode() + b"\n\n")
        assert stream.error == error

    def test_text_that_looks_like_an_error_is_none(self) -> None:
        stream = EventStream("/v1/completions")
        stream.feed(b'data: {"text": "data: {\\"error\\": 1}"}\n\n')
        assert not stream.error

    def test_every_api_has_its_own_error(self) -> None:
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses"):
            text = error_events(path, 'a "quoted" message').decode()
            data = next(line for line in text.split("\n") if line.startswith("data: "))
            assert 'a "quoted" message' in json.dumps(json.loads(data[6:])).replace('\\"', '"')
            assert text.endswith("\n\n")
