"""Which replica gets a request, seen from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import httpx
import pytest

from tests.tools.fleet import Engine, Router

MakeRouter = Callable[..., Router]


@pytest.fixture
def many(make_router: MakeRouter, fast_engines: list[Engine]) -> Router:
    """A router before eight replicas, which are two engines in truth."""
    router = make_router()
    router.replace(*(fast_engines[number % 2].replica(f"c000-r{number:04}") for number in range(8)))
    return router


def chat(router: Router, messages: list[dict[str, str]], **headers: str) -> httpx.Response:
    answer = router.http.post(
        "/v1/chat/completions",
        json={"model": "chat", "messages": messages, "max_tokens": 2},
        headers=headers,
    )
    assert answer.status_code == 200, answer.text
    return answer


def replica_of(answer: httpx.Response) -> str:
    return str(answer.headers["x-exaslurm-replica"])


def test_a_conversation_stays_where_its_beginning_is_cached(many: Router) -> None:
    system = {"role": "system", "content": "You are a helpful assistant. " * 40}
    served = []
    for number in range(12):
        messages = [system, {"role": "user", "content": f"Question {number}? " * 30}]
        turns = set()
        for turn in range(4):
            answer = chat(many, messages)
            turns.add(replica_of(answer))
            text = answer.json()["choices"][0]["message"]["content"]
            messages += [
                {"role": "assistant", "content": text},
                {"role": "user", "content": f"And then, {turn}? " * 30},
            ]
        assert len(turns) == 1, number
        served += turns
    # What all conversations have in common does not draw them to one place.
    assert len(Counter(served)) >= 2


def test_a_session_stays_whatever_it_asks(many: Router) -> None:
    seen = {}
    for session in ("one", "two", "three", "four", "five", "six"):
        seen[session] = {
            replica_of(
                chat(
                    many, [{"role": "user", "content": f"{n} " * 500}], **{"x-session-id": session}
                )
            )
            for n in range(5)
        }
    assert all(len(replicas) == 1 for replicas in seen.values())
    assert len({next(iter(replicas)) for replicas in seen.values()}) > 1


def test_a_replica_can_be_asked_for_by_name(many: Router) -> None:
    hello = [{"role": "user", "content": "hello"}]
    for number in range(8):
        name = f"c000-r{number:04}"
        assert replica_of(chat(many, hello, **{"x-exaslurm-replica": name})) == name
    body = {"model": "chat", "messages": hello}
    answer = many.http.post(
        "/v1/chat/completions", json=body, headers={"x-exaslurm-replica": "c009-r0000"}
    )
    assert answer.status_code == 400
    assert "no replica 'c009-r0000'" in answer.json()["error"]["message"]


def test_different_prompts_are_spread(make_router: MakeRouter, fast_engines: list[Engine]) -> None:
    router = make_router(*fast_engines, policy="power_of_two")
    served = Counter(
        replica_of(chat(router, [{"role": "user", "content": f"{n} " * 200}])) for n in range(60)
    )
    assert min(served.values()) > 10
