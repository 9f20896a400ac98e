"""Requests for a model without a replica wait for one, where one is started for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from exaslurm.core.limits import Limits
from exaslurm.keys.clients import KeyInfo, change_key
from exaslurm.router.admission import Admission, Figures, KeyFigures
from exaslurm.router.errors import RequestError
from exaslurm.router.held import Held
from tests.tools.fleet import Engine, Router, wait_for

NAMES = {"chat": "chat", "chat:base": "chat"}
KEY = KeyInfo(name="ada", created_s=0.0)
OTHER = KeyInfo(name="bob", created_s=0.0)
BODY = {"model": "chat", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


class Request:
    """What waits: it enters the admission when it is woken, as a request does."""

    def __init__(self, desk: Desk, key: KeyInfo = KEY, model: str = "m", tokens: int = 0) -> None:
        self.desk = desk
        self.key = key
        self.model = model
        self.priority = 0
        self.tokens = tokens
        self.told: list[str] = []
        self.error: RequestError | None = None

    def woken(self) -> None:
        self.told.append("woken")
        try:
            if self.desk.admission.enter(self, self.tokens, 1):
                self.admitted()
        except RequestError as error:
            self.refused(error)

    def admitted(self) -> None:
        self.told.append("admitted")

    def refused(self, error: RequestError) -> None:
        self.error = error
        self.desk.held.discard(self)


class Desk:
    """Where requests are held, and the admission behind it, at a clock of the test's."""

    def __init__(self, **limits: Any) -> None:
        self.now_s = 1000.0
        self.admission = Admission(Limits(**limits), self.clock)
        self.turns: list[Callable[[], None]] = []
        self.held = Held(Limits(**limits), self.admission, self.turns.append, self.clock)

    def wake(self, model: str) -> int:
        """How many turns of the event loop it took."""
        self.held.wake(model)
        taken = 1
        while self.turns:
            self.turns.pop(0)()
            taken += 1
        return taken

    def clock(self) -> float:
        return self.now_s

    def hold(
        self, key: KeyInfo = KEY, model: str = "m", tokens: int = 0, times: int = 1
    ) -> list[Request]:
        requests = [Request(self, key, model, tokens) for _ in range(times)]
        for request in requests:
            self.held.hold(request, tokens)
        return requests

    def refusal(self, key: KeyInfo = KEY, tokens: int = 0) -> RequestError:
        with pytest.raises(RequestError) as caught:
            self.hold(key, tokens=tokens)
        assert int(caught.value.headers["Retry-After"]) > 0
        return caught.value

    def of(self, key: KeyInfo) -> KeyFigures:
        return self.admission.figures().keys[key.name]

    def is_empty(self) -> bool:
        figures = self.admission.figures()
        keys = figures.keys.values()
        return (figures.in_flight, figures.waiting, len(self.held)) == (0, 0, 0) and not any(
            key.in_flight or key.waiting or key.held for key in keys
        )


class TestHeld:
    def test_those_that_wait_for_a_name_go_on_when_it_is_served(self) -> None:
        desk = Desk()
        (mine,), (other,) = desk.hold(model="a"), desk.hold(model="b")
        assert desk.held.counts() == {"a": 1, "b": 1}
        desk.wake("a")
        assert (mine.told, other.told) == (["woken", "admitted"], [])
        assert desk.held.counts() == {"b": 1}
        assert desk.of(KEY) == KeyFigures(in_flight=1, waiting=0, held=1)
        desk.admission.leave(mine, 0)
        desk.held.discard(other)
        assert desk.is_empty()

    def test_too_many_are_refused(self) -> None:
        desk = Desk(max_waiting=1)
        desk.hold()
        error = desk.refusal(OTHER)
        assert (error.status, error.cause) == (503, "wake_full")
        assert "one is started, and of at most 1 requests 1 wait already" in error.message

    def test_a_wait_has_an_end(self) -> None:
        desk = Desk(wake_s=30)
        (first,) = desk.hold()
        desk.now_s += 10.0
        (second,) = desk.hold()
        desk.held.sweep(1029.0)
        assert first.error is None
        desk.held.sweep(1030.0)
        assert first.error is not None
        assert "no replica of 'm' came up within 30 s; try again in" in first.error.message
        assert "Retry-After" in first.error.headers
        assert second.error is None
        desk.held.discard(second)
        desk.held.sweep(2000.0)
        assert second.error is None
        assert desk.is_empty()

    def test_a_key_has_as_many_as_it_may_have_at_a_time(self) -> None:
        desk = Desk()
        key = KeyInfo(name="two", created_s=0.0, concurrency=2)
        first, second = desk.hold(key, times=2)
        error = desk.refusal(key)
        assert (error.status, error.cause) == (429, "key_concurrency")
        # Wherever they are, and nobody is asked twice.
        with pytest.raises(RequestError, match="2 requests at a time, and has 2"):
            desk.admission.enter(Request(desk, key, "awake"), 0, 1)
        desk.wake("m")
        assert (first.told, second.told) == (["woken", "admitted"],) * 2
        assert desk.refusal(key).cause == "key_concurrency"
        for one in (first, second):
            desk.admission.leave(one, 0)
        assert desk.is_empty()
        desk.hold(key, times=2)

    def test_a_flood_of_one_key_leaves_room_for_others(self) -> None:
        desk = Desk(max_waiting=40)
        mine = desk.hold(times=20)
        error = desk.refusal()
        assert (error.status, error.cause) == (503, "wake_full")
        assert "of at most 40 requests 20 wait already, 20 of them of the key" in error.message
        others = desk.hold(OTHER, times=10)
        assert desk.refusal(OTHER).cause == "wake_full"
        desk.wake("m")
        assert all(one.told == ["woken", "admitted"] for one in (*mine, *others))

    def test_the_most_that_one_key_may_have_waiting_counts_here_too(self) -> None:
        desk = Desk(max_waiting=4, max_waiting_per_key=3)
        desk.hold(times=3)
        error = desk.refusal()
        assert (error.status, error.cause) == (429, "key_waiting")
        assert "may have 3 requests waiting, and has 3; no replica of 'm'" in error.message

    def test_what_a_minute_allows_is_taken_once(self) -> None:
        desk = Desk()
        key = KeyInfo(name="few", created_s=0.0, requests_per_min=2, tokens_per_min=100)
        first, second = desk.hold(key, tokens=50, times=2)
        assert desk.refusal(key).cause == "key_requests"
        desk.wake("m")
        assert (first.told, second.told) == (["woken", "admitted"],) * 2
        desk.now_s += 30.0  # earned: one request, 50 tokens
        assert desk.refusal(key, tokens=60).cause == "key_tokens"
        desk.hold(key, tokens=50)
        desk.now_s += 30.0
        desk.admission.leave(second, 10)  # 40 less than was reserved
        assert desk.refusal(key, tokens=95).cause == "key_tokens"
        desk.hold(key, tokens=90)

    def test_who_waits_in_vain_gets_its_tokens_back(self) -> None:
        desk = Desk(wake_s=1)
        key = KeyInfo(name="few", created_s=0.0, tokens_per_min=6)
        for _ in range(3):
            desk.hold(key, tokens=6)
            desk.now_s += 1.0
            desk.held.sweep(desk.now_s)
        assert desk.is_empty()

    def test_one_whose_replica_has_gone_keeps_what_it_was_given(self) -> None:
        desk = Desk(max_in_flight_per_replica=1)
        key = KeyInfo(name="one", created_s=0.0, concurrency=1, requests_per_min=1)
        one, next_one = Request(desk, key), Request(desk, OTHER)
        assert desk.admission.enter(one, 0, 1)
        assert not desk.admission.enter(next_one, 0, 1)
        desk.held.hold(one, 0)
        assert desk.of(key) == KeyFigures(in_flight=0, waiting=0, held=1)
        assert next_one.told == ["admitted"]
        desk.wake("m")
        assert one.error is None
        desk.admission.leave(next_one, 0)
        assert one.told == ["woken", "admitted"]
        desk.admission.leave(one, 0)
        assert desk.is_empty()

    def test_thousands_are_woken_a_few_at_a_time(self) -> None:
        """All at once, they stopped the event loop for half a second."""
        desk = Desk(max_waiting=4000)
        keys = [KeyInfo(name=f"key{number}", created_s=0.0) for number in range(1000)]
        requests = [request for key in keys for request in desk.hold(key)]
        other = desk.hold(OTHER, model="other")
        desk.held.wake("m")
        assert 0 < sum(bool(request.told) for request in requests) <= 100
        left = requests.pop()
        desk.held.discard(left)
        desk.held.wake("m")  # it is told twice
        while desk.turns:
            before = len(desk.held)
            desk.turns.pop(0)()
            assert before - len(desk.held) <= 100
        assert {tuple(request.told) for request in requests} == {("woken", "admitted")}
        assert left.told == other[0].told == []
        assert len(desk.held) == 1

    def test_all_that_were_held_find_a_place_where_they_have_to_wait_on(self) -> None:
        desk = Desk(max_waiting=16, max_in_flight_per_replica=1)
        busy = Request(desk, OTHER, "busy")
        desk.admission.enter(busy, 0, 1)
        keys = [KeyInfo(name=f"key{number}", created_s=0.0) for number in range(16)]
        held = [request for key in keys for request in desk.hold(key)]
        desk.wake("m")
        assert not any(request.error for request in held)
        assert desk.admission.waiting == 15
        # Only where there is none at all, one is refused.
        desk.hold(times=2)
        desk.wake("m")
        assert desk.admission.waiting == 16
        assert desk.of(KEY) == KeyFigures(in_flight=0, waiting=1, held=0)


@pytest.fixture
def asleep(make_router: Callable[..., Router]) -> Router:
    """A router that knows a model of which nothing runs."""
    router = make_router(limits=Limits(wake_s=60))
    router.call(lambda: router.inside.may_wake(NAMES))
    wait_for(lambda: router.inside.table.group("chat") is not None)
    return router


def ask(router: Router) -> tuple[threading.Thread, list[httpx.Response]]:
    answers: list[httpx.Response] = []
    thread = threading.Thread(
        target=lambda: answers.append(router.http.post("/v1/chat/completions", json=BODY))
    )
    thread.start()
    return thread, answers


def held(router: Router) -> Any:
    return router.inside.held_counts


def test_its_names_are_known_though_nothing_runs(asleep: Router) -> None:
    page = asleep.http.get("/v1/models").json()
    assert [card["id"] for card in page["data"]] == ["chat", "chat:base"]
    assert page["data"][0]["root"] == "chat"
    assert asleep.stranger.get("/ready").status_code == 200
    models = asleep.http.get("/status").json()["models"]
    assert models[0]["asleep"] is True
    assert asleep.http.post("/v1/chat/completions", json={**BODY, "model": "x"}).status_code == 404


def test_a_request_waits_and_is_answered_when_a_replica_serves(
    asleep: Router, fast_engines: list[Engine]
) -> None:
    thread, answers = ask(asleep)
    wait_for(lambda: held(asleep) == {"chat": 1})
    assert 'exaslurm_router_held{model="chat"} 1' in asleep.http.get("/metrics").text
    asleep.replace(fast_engines[0].replica("c000-r0000"))
    thread.join(20)
    assert answers[0].status_code == 200
    wait_for(lambda: not held(asleep))


def test_one_that_does_not_serve_yet_wakes_nobody(
    asleep: Router, fast_engines: list[Engine]
) -> None:
    from dataclasses import replace

    thread, answers = ask(asleep)
    wait_for(lambda: held(asleep) == {"chat": 1})
    replica = fast_engines[0].replica("c000-r0000")
    asleep.replace(replace(replica, ready=False, state="loading"))
    assert not answers
    assert asleep.http.get("/status").json()["models"][0]["held"] == 1
    asleep.replace(replica)
    thread.join(20)
    assert answers[0].status_code == 200


def at_hand(router: Router) -> tuple[int, int, int]:
    """Of the key that is used here: in flight, waiting, held."""
    figures: list[Figures] = []
    router.call(lambda: figures.append(router.inside.admission.figures()))
    of_key = figures[0].keys["tester"]
    return of_key.in_flight, of_key.waiting, of_key.held


def test_who_leaves_is_not_held(asleep: Router) -> None:
    with pytest.raises(httpx.ReadTimeout):
        asleep.http.post("/v1/chat/completions", json=BODY, timeout=0.5)
    wait_for(lambda: not asleep.inside.held.counts())
    assert at_hand(asleep) == (0, 0, 0)


def test_a_limited_key_is_refused_at_once_and_counted_once(
    asleep: Router, fast_engines: list[Engine]
) -> None:
    change_key(asleep.run_dir, "tester", concurrency=1)
    asleep.keys.refresh()
    thread, answers = ask(asleep)
    wait_for(lambda: held(asleep) == {"chat": 1})
    assert at_hand(asleep) == (0, 0, 1)
    refused = asleep.http.post("/v1/chat/completions", json=BODY)
    assert refused.status_code == 429
    asleep.replace(fast_engines[0].replica("c000-r0000"))
    thread.join(20)
    assert answers[0].status_code == 200
    wait_for(lambda: at_hand(asleep) == (0, 0, 0))
    assert asleep.http.post("/v1/chat/completions", json=BODY).status_code == 200


def test_where_the_last_replica_has_just_gone_another_one_is_waited_for(
    asleep: Router, fast_engines: list[Engine]
) -> None:
    """It is gone before the router has heard of it: the connection is refused."""
    from dataclasses import replace

    gone = replace(fast_engines[0].replica("c000-r0000"), url="http://127.0.0.1:9")
    asleep.replace(gone)
    asleep.call(lambda: None)
    asleep.replace(replace(gone, draining=True, state="draining"))
    thread, answers = ask(asleep)
    wait_for(lambda: held(asleep) == {"chat": 1})
    assert at_hand(asleep) == (0, 0, 1)
    asleep.replace(fast_engines[1].replica("c000-r0001"))
    thread.join(20)
    assert answers[0].status_code == 200
    wait_for(lambda: at_hand(asleep) == (0, 0, 0))


def test_other_models_are_refused_as_ever(
    make_router: Callable[..., Router], fast_engines: list[Engine]
) -> None:
    from dataclasses import replace

    replica = replace(fast_engines[0].replica("c000-r0000"), ready=False, state="loading")
    router = make_router()
    router.replace(replica)
    assert router.http.post("/v1/chat/completions", json=BODY).status_code == 503
