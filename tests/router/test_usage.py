"""What an engine says that a request took is found wherever it stands, and is no text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from exaslurm.router.events import EventStream
from exaslurm.router.usage import Usage, usage
from tests.router.test_accounts import figures
from tests.tools.fleet import Router
from tests.tools.rawengine import RawEngine

CHAT = {"prompt_tokens": 4, "total_tokens": 504, "completion_tokens": 500}
RESPONSES = {
    "input_tokens": 4,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 500,
    "total_tokens": 504,
}
BEHIND: list[dict[str, Any]] = [
    {},
    {"user": "usage"},
    {"user": '"usage":{"input_tokens":0,"output_tokens":0}'},
    {"user": "x" * 10_000},
    {"prompt_logprobs": [None, {"7": {"decoded_token": "usage"}}, {"8": {"decoded_token": ":"}}]},
    {"x": ["usage", {"a": 1}], "usage ": {"prompt_tokens": 1}},
    {"metadata": {"usage": "{", "y": None}},
]


@pytest.mark.parametrize("told", [CHAT, RESPONSES])
@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (",\n", " :\t")])
def test_in_a_body(
    told: dict[str, Any], behind: dict[str, Any], separators: tuple[str, str]
) -> None:
    answer = {"text": 'a "usage": {"prompt_tokens": 1}', "usage": told} | behind
    raw = json.dumps(answer, separators=separators).encode()
    assert usage(raw) == (4, 500)


@pytest.mark.parametrize("told", [CHAT, RESPONSES])
@pytest.mark.parametrize("behind", BEHIND)
def test_in_pieces(told: dict[str, Any], behind: dict[str, Any]) -> None:
    raw = json.dumps({"text": "x" * 300, "usage": told} | behind).encode()
    for at in range(250, min(len(raw), 700)):
        reader = Usage()
        for piece in (raw[:at], raw[at : at + 3], raw[at + 3 :]):
            reader.passed(piece, cut=True)
        assert reader.told == (4, 500)


def test_of_the_prompt_before_and_of_the_answer_behind() -> None:
    """As streams of messages tell it, in one packet or in several."""
    begins = b'data: {"message": {"usage": {"input_tokens": 100, "output_tokens": 1}}}\n\n'
    ends = b'data: {"usage": {"output_tokens": 5}}\n\n'
    assert usage(begins) == (100, 1)
    assert usage(ends) == (None, 5)
    assert usage(begins + ends) == (100, 5)
    assert usage(begins + ends + b'data: {"usage": {}}\n\n') == (100, 5)
    assert usage(b'{"usage": {"input_tokens": 7}}' + begins) == (100, 1)


def test_nothing_told() -> None:
    for raw in (b"", b'"usage"', b'{"usage":null}', b'{"x":"usage"}', b'{"usage":{}}'):
        assert usage(raw) == (None, None)


@pytest.mark.parametrize("behind", BEHIND)
def test_in_a_stream(behind: dict[str, Any]) -> None:
    stream = EventStream("/v1/responses")
    stream.passed(b'data: {"usage": null}\n\n')
    event = b"data: " + json.dumps({"response": {"usage": RESPONSES} | behind}).encode() + b"\n\n"
    for piece in (event[:40], event[40:], b"data: 1\n\n", b"data: 2\n\n", b"data: 3\n\n"):
        stream.passed(piece)
    assert stream.usage.told == (4, 500)


def test_what_has_passed_of_a_stream_is_not_kept() -> None:
    stream = EventStream("/v1/completions")
    stream.passed(b"data: " + b"x" * 100_000 + b"\n\n")
    assert len(stream.usage._last) == 0
    stream.passed(b"data: " + b"x" * 300_000)
    assert len(stream.usage._last) < 5000


@pytest.fixture
def engine() -> Iterator[RawEngine]:
    engine = RawEngine()
    yield engine
    engine.close()


@pytest.mark.parametrize("behind", [b"", b',"user":"usage"', b',"y":[%b1]' % (b"1," * 700_000)])
def test_of_an_answer_too_long_to_wait_for(
    make_router: Callable[..., Router], engine: RawEngine, behind: bytes
) -> None:
    router = make_router()
    router.replace(engine.replica())
    told = b'"usage":' + json.dumps(CHAT).encode()
    body = b'{"data":[%b1],%b%b}' % (b"1," * 700_000, told, behind)
    engine.answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    ask = {"model": "chat", "input": "x"}
    assert router.http.post("/v1/embeddings", json=ask).content == body
    assert sum(count for _, count in figures(router, "prompt_tokens_total")) == 4
    assert sum(count for _, count in figures(router, "completion_tokens_total")) == 500
