"""Who may go, who waits, who is refused; and that nothing is ever lost or counted twice."""

from __future__ import annotations

import dataclasses
import logging
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from exaslurm.core.limits import Limits
from exaslurm.keys.clients import KeyInfo
from exaslurm.router.admission import Admission
from exaslurm.router.errors import RequestError, error_body


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def make_key(name: str = "ada", **options: Any) -> KeyInfo:
    return KeyInfo(name=name, created_s=0.0, **options)


ADA = make_key("ada")
BOB = make_key("bob")


class Asked:
    """A request, and what it was told."""

    def __init__(self, key: KeyInfo = ADA, model: str = "m", priority: int | None = None) -> None:
        self.key = key
        self.model = model
        self.priority = key.priority if priority is None else priority
        self.told: list[str | RequestError] = []

    def admitted(self) -> None:
        self.told.append("go")

    def refused(self, error: RequestError) -> None:
        self.told.append(error)


class Gate:
    """An admission at a clock of the test's, for models of a given capacity."""

    def __init__(self, capacity: int = 1, **limits: Any) -> None:
        self.clock = Clock()
        self.capacity = capacity
        self.admission = Admission(Limits(**limits), self.clock)

    def enter(self, asked: Asked, tokens: int = 10) -> bool:
        return self.admission.enter(asked, tokens, self.capacity)

    def refusal(self, asked: Asked, tokens: int = 10) -> RequestError:
        with pytest.raises(RequestError) as caught:
            self.enter(asked, tokens)
        assert not asked.told
        return caught.value

    def leave(self, asked: Asked, used: int | None = None) -> None:
        self.admission.leave(asked, used)

    def later(self, seconds: float) -> None:
        self.clock.now_s += seconds
        self.admission.sweep(self.clock.now_s)

    def is_empty(self) -> bool:
        figures = self.admission.figures()
        counts = [*figures.models.values(), *figures.keys.values(), figures]
        return not any(count.in_flight or count.waiting for count in counts)


def retry_s(error: RequestError) -> int:
    return int(error.headers["Retry-After"])


def test_without_limits_everything_goes_and_is_counted() -> None:
    gate = Gate()
    asked = [Asked(key, model) for key in (ADA, BOB) for model in ("m", "n", "n")]
    assert all(gate.enter(one) for one in asked)
    figures = gate.admission.figures()
    assert figures.in_flight == gate.admission.in_flight == 6
    assert {name: model.in_flight for name, model in figures.models.items()} == {"m": 2, "n": 4}
    assert {name: key.in_flight for name, key in figures.keys.items()} == {"ada": 3, "bob": 3}
    assert figures.models["m"].limit is None
    for one in asked:
        gate.leave(one)
    assert gate.is_empty()


def test_leaving_twice_or_unknown_changes_nothing() -> None:
    gate = Gate()
    one = Asked()
    gate.leave(one)
    gate.enter(one)
    gate.leave(one)
    gate.leave(one)
    assert gate.is_empty()


# Limits of a key.


def test_concurrency_of_a_key() -> None:
    gate = Gate()
    key = make_key(concurrency=2)
    asked = [Asked(key), Asked(key)]
    assert all(gate.enter(one) for one in asked)
    error = gate.refusal(Asked(key))
    assert (error.status, error.cause, retry_s(error)) == (429, "key_concurrency", 1)
    assert "may have 2 requests at a time, and has 2" in error.message
    assert b'"type":"RateLimitError"' in error.body()
    gate.leave(asked[0])
    assert gate.enter(Asked(key))


def test_waiting_requests_count_for_concurrency() -> None:
    gate = Gate(max_in_flight_per_replica=1)
    key = make_key(concurrency=2)
    assert gate.enter(Asked(key))
    assert not gate.enter(Asked(key))
    assert gate.refusal(Asked(key)).cause == "key_concurrency"


def test_requests_per_minute() -> None:
    gate = Gate()
    key = make_key(requests_per_min=60)
    for _ in range(60):
        assert gate.enter(Asked(key))
    error = gate.refusal(Asked(key))
    assert (error.status, error.cause, retry_s(error)) == (429, "key_requests", 1)
    assert "60 requests per minute" in error.message
    for _ in range(100):  # what was refused is not charged for
        gate.refusal(Asked(key))
    gate.later(retry_s(error))
    assert gate.enter(Asked(key))
    gate.refusal(Asked(key))
    assert gate.enter(Asked(BOB))


def test_the_time_to_try_again_is_neither_too_early_nor_much_too_late() -> None:
    gate = Gate()
    key = make_key(requests_per_min=4)
    assert all(gate.enter(Asked(key)) for _ in range(4))
    assert retry_s(gate.refusal(Asked(key))) == 15
    gate.later(13.9)
    gate.refusal(Asked(key))
    gate.later(1.1)
    assert gate.enter(Asked(key))


def test_tokens_are_reserved_and_settled() -> None:
    gate = Gate()
    key = make_key(tokens_per_min=1000)
    first = Asked(key)
    assert gate.enter(first, 900)
    error = gate.refusal(Asked(key), 200)
    assert (error.status, error.cause) == (429, "key_tokens")
    assert "1000 tokens per minute: 100 are left, this request asks for 200" in error.message
    assert retry_s(error) == 6
    gate.leave(first, 50)  # it had asked for more than it used
    second = Asked(key)
    assert gate.enter(second, 900)
    gate.leave(second, 2000)  # and this one used more than was known
    assert retry_s(gate.refusal(Asked(key), 1)) == 64  # 1,051 at 1,000 a minute
    gate.later(64)
    assert gate.enter(Asked(key), 1)


def test_tokens_that_nobody_counted_stay_reserved() -> None:
    gate = Gate()
    key = make_key(tokens_per_min=1000)
    first = Asked(key)
    assert gate.enter(first, 600)
    gate.leave(first, None)
    gate.refusal(Asked(key), 600)


def test_a_request_above_a_whole_minutes_tokens_gets_its_turn() -> None:
    gate = Gate()
    key = make_key(tokens_per_min=1000)
    assert gate.enter(Asked(key), 1)
    error = gate.refusal(Asked(key), 5000)
    assert retry_s(error) == 1
    gate.later(1)
    assert gate.enter(Asked(key), 5000)
    assert retry_s(gate.refusal(Asked(key), 1)) == 241  # it has to be earned again


def test_what_is_refused_for_one_limit_uses_up_no_other() -> None:
    gate = Gate(max_in_flight=1, max_waiting=0)
    key = make_key(requests_per_min=2, tokens_per_min=1000)
    first = Asked(BOB)
    gate.enter(first)
    for _ in range(5):
        assert gate.refusal(Asked(key), 500).cause == "queue_full"
    gate.leave(first)
    one = Asked(key)
    assert gate.enter(one, 500)
    gate.leave(one, None)
    assert gate.enter(Asked(key), 500)


def test_a_changed_key_counts_at_once_and_keeps_what_it_has() -> None:
    gate = Gate()
    assert gate.enter(Asked(make_key()))
    limited = make_key(concurrency=1, requests_per_min=2)
    assert gate.refusal(Asked(limited)).cause == "key_concurrency"
    wider = make_key(concurrency=9, requests_per_min=2)
    assert gate.enter(Asked(wider))
    assert gate.enter(Asked(wider))
    assert gate.refusal(Asked(wider)).cause == "key_requests"
    more = make_key(concurrency=9, requests_per_min=6)
    assert retry_s(gate.refusal(Asked(more))) == 10  # at the new rate
    gate.later(10)
    assert gate.enter(Asked(more))
    assert gate.refusal(Asked(more)).cause == "key_requests"
    free = make_key()
    assert gate.enter(Asked(free))
    assert gate.admission.figures().keys["ada"].in_flight == 5


# Waiting.


def test_what_is_over_waits_and_goes_in_turn() -> None:
    gate = Gate(capacity=2, max_in_flight_per_replica=1)
    running = [Asked(), Asked()]
    assert all(gate.enter(one) for one in running)
    waiting = [Asked(), Asked()]
    assert not any(gate.enter(one) for one in waiting)
    assert gate.enter(Asked(model="other"))
    assert gate.admission.figures().models["m"].limit == 2
    gate.leave(running[0])
    assert (waiting[0].told, waiting[1].told) == (["go"], [])
    gate.leave(waiting[0])
    assert waiting[1].told == ["go"]
    gate.leave(running[1])
    gate.leave(waiting[1])
    assert gate.admission.figures().models["m"].in_flight == 0


def test_the_routers_own_bound_is_over_all_models() -> None:
    gate = Gate(max_in_flight=2)
    running = [Asked(model="a"), Asked(model="b")]
    assert all(gate.enter(one) for one in running)
    waiting = [Asked(model="a"), Asked(model="a"), Asked(model="c")]
    assert not any(gate.enter(one) for one in waiting)
    gate.leave(running[1])
    gate.leave(running[0])
    assert [one.told for one in waiting] == [["go"], [], ["go"]]  # models take turns


def test_higher_priority_goes_first_over_all_models() -> None:
    gate = Gate(max_in_flight=1)
    first = Asked()
    gate.enter(first)
    asked = [
        Asked(model=model, priority=priority)
        for model, priority in zip("abc", (0, 5, 1), strict=True)
    ]
    assert not any(gate.enter(one) for one in asked)
    gate.leave(first)
    assert [one.told for one in asked] == [[], ["go"], []]
    gate.leave(asked[1])
    assert [one.told for one in asked] == [[], ["go"], ["go"]]


def test_a_model_that_is_full_does_not_hold_up_another() -> None:
    gate = Gate(max_in_flight=3, max_in_flight_per_replica=1)
    full, other, third = Asked(model="full"), Asked(model="other"), Asked(model="third")
    assert all(gate.enter(one) for one in (full, other, third))
    behind, free = Asked(model="full", priority=9), Asked(model="free")
    assert not gate.enter(behind)
    assert not gate.enter(free)
    gate.leave(other)
    assert (behind.told, free.told) == ([], ["go"])


def test_higher_priority_goes_first() -> None:
    gate = Gate(max_in_flight=1)
    first = Asked()
    gate.enter(first)
    asked = {priority: Asked(priority=priority) for priority in (0, -5, 10, 3)}
    assert not any(gate.enter(one) for one in asked.values())
    order = []
    last = first
    while not gate.is_empty():
        gate.leave(last)
        going = [p for p, one in asked.items() if one.told and p not in order]
        order += going
        last = asked[going[0]] if going else last
    assert order == [10, 3, 0, -5]


def test_a_client_that_leaves_the_queue_leaves_nothing_behind() -> None:
    gate = Gate(max_in_flight=1)
    key = make_key(tokens_per_min=1000)
    first = Asked()
    gate.enter(first)
    waiting = Asked(key)
    assert not gate.enter(waiting, 900)
    gate.leave(waiting)
    again = Asked(key)
    assert not gate.enter(again, 900)  # the tokens were given back
    gate.leave(first)
    assert (waiting.told, again.told) == ([], ["go"])
    gate.leave(again, 0)
    assert gate.is_empty()


def test_replicas_that_come_let_in_and_ones_that_go_only_stop() -> None:
    gate = Gate(capacity=1, max_in_flight_per_replica=2)
    asked = [Asked() for _ in range(7)]
    assert [gate.enter(one) for one in asked] == [True, True, *[False] * 5]
    gate.admission.capacity_changed("m", 3)
    assert [one.told for one in asked] == [[], [], *[["go"]] * 4, []]
    gate.admission.capacity_changed("m", 1)
    for one in asked[:4]:
        gate.leave(one)
    assert asked[6].told == []
    gate.leave(asked[4])
    assert asked[6].told == ["go"]
    gate.admission.capacity_changed("unheard-of", 5)
    assert set(gate.admission.figures().models) == {"m"}


def test_the_capacity_that_a_request_brings_counts_as_well() -> None:
    gate = Gate(capacity=0, max_in_flight_per_replica=1)
    early = Asked()
    assert not gate.enter(early)
    gate.capacity = 2
    assert gate.enter(Asked())
    assert early.told == ["go"]


def test_a_wait_ends() -> None:
    gate = Gate(max_in_flight=1, wait_s=30.0)
    first = Asked()
    gate.enter(first)
    early = Asked(priority=-1)
    gate.enter(early)
    gate.later(20)
    late = Asked()
    gate.enter(late)
    gate.later(9.9)
    assert early.told == []
    gate.later(0.1)
    (error,) = early.told
    assert isinstance(error, RequestError)
    assert (error.status, error.cause) == (503, "queue_timeout")
    assert "no engine was free within 30 s" in error.message
    assert retry_s(error) >= 1
    assert late.told == []
    gate.leave(early)  # its request tells as well that it is over
    gate.leave(first)
    assert late.told == ["go"]
    gate.leave(late)
    assert gate.is_empty()
    assert gate.admission.figures().refused["queue_timeout"] == 1


def test_many_waits_that_end_at_once_end_over_some_sweeps() -> None:
    gate = Gate(max_in_flight=1, max_waiting=5000, max_waiting_per_key=5000, wait_s=1.0)
    gate.enter(Asked())
    asked = [Asked() for _ in range(2000)]
    assert not any(gate.enter(one) for one in asked)
    gate.clock.now_s += 2
    sweeps = 0
    while gate.admission.waiting:
        gate.later(0.25)
        told = sum(bool(one.told) for one in asked)
        sweeps += 1
        assert told <= 1000 * sweeps
        assert sweeps < 20
    assert sweeps > 1
    assert all(len(one.told) == 1 for one in asked)


def test_a_full_queue_refuses() -> None:
    gate = Gate(max_in_flight=1, max_waiting=3, max_waiting_per_key=3)
    gate.enter(Asked())
    assert not any(gate.enter(Asked()) for _ in range(3))
    error = gate.refusal(Asked(BOB))
    assert (error.status, error.cause) == (503, "queue_full")
    assert "3 of at most 3" in error.message
    assert 1 <= retry_s(error) <= 60


def test_the_queue_of_one_key_is_bounded() -> None:
    gate = Gate(max_in_flight=1, max_waiting_per_key=2)
    gate.enter(Asked())
    assert not any(gate.enter(Asked()) for _ in range(2))
    error = gate.refusal(Asked())
    assert (error.status, error.cause) == (429, "key_waiting")
    assert "may have 2 requests waiting, and has 2" in error.message
    assert not gate.enter(Asked(BOB))


def test_a_flood_of_one_key_leaves_room_for_others() -> None:
    gate = Gate(max_in_flight=1, max_waiting=100)
    gate.enter(Asked())
    assert not any(gate.enter(Asked()) for _ in range(50))
    for _ in range(950):
        error = gate.refusal(Asked())
        assert (error.status, error.cause) == (503, "queue_full")
    assert gate.admission.waiting == 50
    for number in range(20):
        assert not gate.enter(Asked(make_key(f"key{number}")))


def test_the_time_to_try_again_follows_the_pace_of_the_queue() -> None:
    gate = Gate(max_in_flight=1, max_waiting=80, max_waiting_per_key=80, wait_s=1000.0)
    running = Asked()
    gate.enter(running)
    queue = [Asked() for _ in range(80)]
    for one in queue:
        gate.enter(one)
    for done in range(1, 41):  # two a second
        gate.leave(running)
        running = queue.pop(0)
        assert running.told == ["go"]
        if done % 2 == 0:
            gate.later(1.0)
    for _ in range(40):
        gate.enter(Asked())
    assert retry_s(gate.refusal(Asked(BOB))) == pytest.approx(40, abs=2)


def test_each_of_several_processes_takes_its_share() -> None:
    clock = Clock()
    limits = Limits(max_in_flight=9, max_in_flight_per_replica=3, max_waiting=5, wait_s=7.0)
    assert limits.of_one(1) == limits
    share = limits.of_one(2)
    assert (share.max_in_flight, share.max_waiting, share.max_waiting_per_key) == (5, 3, None)
    assert (share.wait_s, share.max_body_mib) == (7.0, limits.max_body_mib)
    assert dataclasses.replace(limits, max_waiting_per_key=1).of_one(4).max_waiting_per_key == 1
    admission = Admission(limits, clock, processes=2)
    assert [admission.enter(Asked(), 1, 3) for _ in range(6)] == [True] * 5 + [False]
    assert admission.figures().models["m"].limit == 5  # half of 9, rounded up
    admission.capacity_changed("m", 1)
    assert admission.figures().models["m"].limit == 2


# Fair shares.


def serve(gate: Gate, running: list[Asked], queue: list[Asked], turns: int, used: Any) -> Counter:
    """Let requests end one after another; how many of each key were let in."""
    served: Counter[str] = Counter()
    waiting = list(queue)
    for _ in range(turns):
        gate.leave(running.pop(0), used)
        going = [one for one in waiting if one.told]
        waiting = [one for one in waiting if not one.told]
        running += going
        served.update(one.key.name for one in going)
    return served


def test_a_thousand_waiting_do_not_starve_one() -> None:
    gate = Gate(max_in_flight=1)
    running = [Asked()]
    gate.enter(running[0])
    flood = [Asked() for _ in range(1000)]
    single = Asked(BOB)
    for one in (*flood, single):
        assert not gate.enter(one)
    assert serve(gate, running, [*flood, single], 2, None)["bob"] == 1


def test_keys_that_wait_get_equal_shares() -> None:
    gate = Gate(max_in_flight=4)
    running = [Asked() for _ in range(4)]
    for one in running:
        gate.enter(one)
    counts = {"ada": 500, "bob": 100, "eve": 60}
    queue = [Asked(make_key(name)) for name, count in counts.items() for _ in range(count)]
    random.Random(7).shuffle(queue)
    for one in queue:
        gate.enter(one)
    assert serve(gate, running, queue, 150, None) == {"ada": 50, "bob": 50, "eve": 50}


def test_shares_are_measured_in_tokens() -> None:
    gate = Gate(max_in_flight=1)
    running = [Asked()]
    gate.enter(running[0])
    queue = []
    for _ in range(200):
        for key, tokens in ((ADA, 1900), (BOB, 400)):
            queue.append(Asked(key))
            gate.enter(queue[-1], tokens)
    served = serve(gate, running, queue, 100, None)
    assert served["bob"] == pytest.approx(80, abs=2)


def test_who_asks_for_more_tokens_than_it_uses_is_not_held_back_for_good() -> None:
    gate = Gate(max_in_flight=1)
    running = [Asked()]
    gate.enter(running[0])
    queue = []
    for _ in range(300):
        for key, tokens in ((ADA, 4000), (BOB, 100)):
            queue.append(Asked(key))
            gate.enter(queue[-1], tokens)
    serve(gate, running, queue, 60, 100)  # at first it is taken at its word
    served = serve(gate, running, [one for one in queue if not one.told], 200, 100)
    assert served["ada"] == pytest.approx(100, abs=3)


def test_a_queue_that_was_given_up_is_not_held_against_the_key() -> None:
    gate = Gate(max_in_flight=1)
    running = [Asked(BOB)]
    gate.enter(running[0])
    given_up = [Asked() for _ in range(500)]
    others = [Asked(BOB) for _ in range(50)]
    for one in (*given_up, *others):
        gate.enter(one)
    for one in given_up:
        gate.leave(one)
    back = Asked()
    gate.enter(back)
    serve(gate, running, [*others, back], 2, None)
    assert back.told == ["go"]


# What callbacks may do.


class Hasty(Asked):
    """Over as soon as it is let in."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate

    def admitted(self) -> None:
        super().admitted()
        self.gate.leave(self, 0)


def test_requests_that_end_as_they_are_let_in_do_not_pile_up_calls(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = Gate(max_in_flight=1)
    first = Asked()
    gate.enter(first)
    waiting = [Hasty(gate) for _ in range(4000)]  # far above the interpreter's limit of calls
    for one in waiting:
        gate.enter(one)
    gate.leave(first)
    assert all(one.told == ["go"] for one in waiting)
    assert gate.is_empty()
    assert not caplog.records


class Broken(Asked):
    def admitted(self) -> None:
        raise RuntimeError("a bug of its own")

    def refused(self, error: RequestError) -> None:
        raise RuntimeError("a bug of its own")


def test_one_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate(max_in_flight=2, wait_s=5.0)
    running = [Asked(), Asked()]
    for one in running:
        gate.enter(one)
    waiting = [Broken(), Asked(), Broken(), Asked()]
    for one in waiting:
        gate.enter(one)
    with caplog.at_level(logging.CRITICAL + 1, logger="exaslurm.router.admission"):
        for one in running:
            gate.leave(one)
        assert waiting[1].told == ["go"]
        gate.later(6)
    assert isinstance(waiting[3].told[0], RequestError)
    for one in waiting:
        gate.leave(one)
    assert gate.is_empty()


def test_a_model_leaves_room_for_those_who_wait_for_others() -> None:
    gate = Gate(max_in_flight_per_replica=1, max_waiting=16)
    running = [Asked(ADA, model) for model in ("m", "n")]
    assert all(gate.enter(one) for one in running)
    waiting = [Asked(make_key(f"key{number}"), "m") for number in range(14)]
    assert not any(gate.enter(one) for one in waiting)
    refused = gate.refusal(Asked(make_key("one-more"), "m"))
    assert refused.status == 503
    assert "wait for 'm': 14 of at most 14" in refused.message
    waiting += [Asked(make_key("other"), "n"), Asked(make_key("another"), "n")]
    assert not any(gate.enter(one) for one in waiting[-2:])
    for one in (*running, *waiting):
        gate.leave(one)
    assert gate.is_empty()


def test_what_is_idle_is_forgotten() -> None:
    gate = Gate()
    for number in range(100):
        one = Asked(make_key(f"key{number}", requests_per_min=10), model=f"m{number}")
        gate.enter(one)
        gate.leave(one)
        gate.admission.capacity_changed(one.model, 0)
    held = Asked(make_key("stays"), model="stays")
    gate.enter(held)
    gate.later(61)
    figures = gate.admission.figures()
    assert list(figures.keys) == ["stays"]
    assert list(figures.models) == ["stays"]


def test_the_error_has_openais_form() -> None:
    body = error_body(429, "too many")
    assert body == (
        b'{"error":{"message":"too many","type":"RateLimitError","param":null,"code":429}}'
    )


# Whatever happens.


@dataclasses.dataclass(eq=False)
class Tracked(Asked):
    """A request that knows what it should be: in flight, waiting, or neither."""

    machine: Machine
    key: KeyInfo
    model: str
    priority: int
    tokens: int
    hasty: bool
    state: str = "new"

    def admitted(self) -> None:
        assert self.state == "waiting"
        ahead = [
            other.priority
            for other in self.machine.alive
            if other.state == "waiting" and other.model == self.model
        ]
        assert self.priority >= max(ahead)
        self.state = "in flight"
        if self.hasty:
            self.machine.end(self, None)

    def refused(self, error: RequestError) -> None:
        assert self.state == "waiting"
        assert error.status == 503
        assert retry_s(error) >= 1
        self.state = "refused"


KEYS = (
    make_key("free"),
    make_key("other", priority=2),
    make_key("few", concurrency=3),
    make_key("slow", requests_per_min=30, tokens_per_min=3000),
    make_key("slow", requests_per_min=60, concurrency=5),  # the same key, changed
)


class Machine(RuleBasedStateMachine):
    """Any order of requests, ends, time-outs and changes of capacity."""

    MODELS = ("a", "b", "c")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.limits = Limits(
            max_in_flight=6, max_in_flight_per_replica=2, max_waiting=12, wait_s=10.0
        )
        self.admission = Admission(self.limits, self.clock)
        self.capacity = dict.fromkeys(self.MODELS, 1)
        self.alive: list[Tracked] = []

    def end(self, one: Tracked, used: int | None) -> None:
        one.state = "over"
        self.alive.remove(one)
        self.admission.leave(one, used)

    @rule(
        key=st.sampled_from(KEYS),
        model=st.sampled_from(MODELS),
        priority=st.integers(-1, 1),
        tokens=st.integers(0, 4000),
        hasty=st.booleans(),
    )
    def ask(self, key: KeyInfo, model: str, priority: int, tokens: int, hasty: bool) -> None:
        one = Tracked(self, key, model, priority, tokens, hasty)
        refusal: RequestError | None = None
        now = False
        try:
            now = self.admission.enter(one, tokens, self.capacity[model])
        except RequestError as error:
            refusal = error
        if refusal is not None:
            assert refusal.status == (429 if refusal.cause.startswith("key_") else 503)
            assert 1 <= retry_s(refusal) <= 3600
            return
        one.state = "in flight" if now else "waiting"
        self.alive.append(one)

    @rule(key=st.sampled_from(KEYS), model=st.sampled_from(MODELS), tokens=st.integers(0, 4000))
    def hold(self, key: KeyInfo, model: str, tokens: int) -> None:
        one = Tracked(self, key, model, 0, tokens, hasty=False)
        refusal: RequestError | None = None
        try:
            self.admission.hold(one, tokens)
        except RequestError as error:
            refusal = error
        if refusal is not None:
            assert refusal.status == 429
            return
        one.state = "held"
        self.alive.append(one)

    @precondition(lambda self: any(one.state == "in flight" for one in self.alive))
    @rule(data=st.data())
    def hold_again(self, data: st.DataObject) -> None:
        running = [one for one in self.alive if one.state == "in flight"]
        one = data.draw(st.sampled_from(running))
        one.state = "held"
        self.admission.hold(one, one.tokens)

    @precondition(lambda self: any(one.state == "held" for one in self.alive))
    @rule(data=st.data())
    def wake(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from([one for one in self.alive if one.state == "held"]))
        now, cause = False, ""
        try:
            now = self.admission.enter(one, one.tokens, self.capacity[one.model])
        except RequestError as error:
            cause = error.cause
        if cause:
            assert cause == "queue_full"
            one.state = "refused"
            self.alive.remove(one)
            return
        one.state = "in flight" if now else "waiting"

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), used=st.none() | st.integers(0, 5000))
    def end_one(self, data: st.DataObject, used: int | None) -> None:
        self.end(data.draw(st.sampled_from(self.alive)), used)

    @rule(model=st.sampled_from(MODELS), capacity=st.integers(0, 4))
    def change(self, model: str, capacity: int) -> None:
        self.capacity[model] = capacity
        self.admission.capacity_changed(model, capacity)

    @rule(seconds=st.floats(0, 70))
    def pass_time(self, seconds: float) -> None:
        self.clock.now_s += seconds
        self.admission.sweep(self.clock.now_s)

    @invariant()
    def figures_are_those_of_the_requests(self) -> None:
        figures = self.admission.figures()
        held = Counter(one.key.name for one in self.alive if one.state == "held")
        assert held == {name: key.held for name, key in figures.keys.items() if key.held}
        for state in ("in flight", "waiting"):
            name = state.replace(" ", "_")
            here = [one for one in self.alive if one.state == state]
            assert getattr(figures, name) == len(here)
            models = Counter(one.model for one in here)
            keys = Counter(one.key.name for one in here)
            for model, counted in figures.models.items():
                assert getattr(counted, name) == models.pop(model, 0)
            for key, of_key in figures.keys.items():
                assert getattr(of_key, name) == keys.pop(key, 0)
            assert not models
            assert not keys
        assert figures.in_flight <= self.limits.max_in_flight
        assert figures.waiting <= self.limits.max_waiting

    @invariant()
    def nobody_waits_without_need(self) -> None:
        figures = self.admission.figures()
        if figures.in_flight < self.limits.max_in_flight:
            for one in self.alive:
                if one.state == "waiting":
                    assert figures.models[one.model].in_flight >= 2 * self.capacity[one.model]

    @invariant()
    def nobody_waits_too_long(self) -> None:
        self.admission.sweep(self.clock.now_s)
        assert all(
            waiter.deadline_s > self.clock.now_s for waiter in self.admission._waiting.values()
        )

    def teardown(self) -> None:
        for one in list(self.alive):
            if one in self.alive:  # the end of one before may have been this one's too
                self.end(one, 0)
        figures = self.admission.figures()
        counts = [*figures.models.values(), *figures.keys.values(), figures]
        assert not any(count.in_flight or count.waiting for count in counts)
        assert not self.admission._in_flight
        assert not self.admission._held
        assert not self.admission._waiting
        assert not self.admission._queued
        for model in self.admission._models.values():
            assert not model.queue.size
            assert not model.queue._bands


Machine.TestCase.settings = settings(max_examples=120, stateful_step_count=60, deadline=None)
TestWhateverHappens = Machine.TestCase
