"""What is refused before an engine is bothered: nothing that vLLM would take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from exaslurm.router.check import check, floor_tokens, output_tokens
from exaslurm.router.errors import RequestError
from exaslurm.router.parse import peek
from exaslurm.router.routes import PROXIED
from tests.tools.ask_vllm import Case, cases, read
from tests.tools.corpus import CORPUS, MAX_MODEL_LEN

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
HI = [{"role": "user", "content": "hi"}]


def corpus() -> Iterator[Case]:
    for file in sorted(CORPUS.glob("*.jsonl")):
        for line in read(file):
            yield from cases(line)


def refusal(case: Case) -> RequestError | None:
    """What the router says to a request, None if it passes it on."""
    try:
        seen = peek(case.path, case.content_type.encode(), case.raw)
        if seen.data is not None:
            check(case.path, seen.data, MAX_MODEL_LEN)
    except RequestError as error:
        return error
    return None


def test_what_vllm_accepts_passes() -> None:
    accepted = [case for case in corpus() if case.status in (200, 404)]
    assert len(accepted) > 1900
    stricter = [
        (case.path, case.name, case.raw[:200], refused.message)
        for case in accepted
        if (refused := refusal(case)) is not None
    ]
    assert stricter == []


def test_most_of_what_vllm_refuses_is_refused_here() -> None:
    refused = [case for case in corpus() if case.status not in (200, 404)]
    ours = [error for case in refused if (error := refusal(case)) is not None]
    assert len(ours) > 0.7 * len(refused) > 3000
    assert {error.status for error in ours} == {400}
    assert [error.message for error in ours if not error.param] == []


def refused_param(route: str, data: dict[str, Any]) -> str | None:
    with pytest.raises(RequestError) as caught:
        check(route, data, MAX_MODEL_LEN)
    assert caught.value.status == 400
    assert caught.value.param is not None
    assert caught.value.param.split(".")[-1] in caught.value.message
    return caught.value.param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [*HI, None]}, "messages[1]"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": 5, "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": HI, "temperature": "warm"}, "temperature"),
        ({"messages": HI, "top_p": 0}, "top_p"),
        ({"messages": HI, "n": [1]}, "n"),
        ({"messages": HI, "max_tokens": 0}, "max_tokens"),
        ({"messages": HI, "max_tokens": MAX_MODEL_LEN + 1}, "max_tokens"),
        ({"messages": HI, "tools": [{"function": {}}]}, "tools[0].function.name"),
        ({"messages": HI, "tool_choice": "auto"}, "tool_choice"),
        ({"messages": HI, "structured_outputs": "json"}, "structured_outputs"),
    ],
)
def test_the_field_is_named(body: dict[str, Any], param: str) -> None:
    assert refused_param(CHAT, body) == param


def test_messages_say_what_was_expected() -> None:
    with pytest.raises(RequestError, match="'temperature' must be a number, not the string 'warm'"):
        check(CHAT, {"messages": HI, "temperature": "warm"}, None)
    with pytest.raises(RequestError, match="'top_p' must be greater than 0, and at most 1, not 2"):
        check(CHAT, {"messages": HI, "top_p": 2}, None)
    with pytest.raises(RequestError, match="the field 'messages' is missing"):
        check(CHAT, {}, None)
    with pytest.raises(RequestError, match="'messages' must not be null"):
        check(CHAT, {"messages": None}, None)


@pytest.mark.parametrize(
    "more",
    [
        {"foo": 1},
        {"model": None},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"max_tokens": None, "stop": None, "stream_options": None, "tool_choice": None},
        # vLLM refuses this, others ignore it: the engine shall say.
        {"stream_options": {"include_usage": True}},
        {"max_tokens": MAX_MODEL_LEN},
        {"max_tokens": "5", "temperature": "0.5", "stream": "yes", "n": True},
        {"max_tokens": -1, "max_completion_tokens": 1},
        {"temperature": 9.0},
        {"use_beam_search": True, "top_p": 9, "max_tokens": 0},
    ],
)
def test_what_is_odd_but_accepted_passes(more: dict[str, Any]) -> None:
    check(CHAT, {"messages": HI, **more}, MAX_MODEL_LEN)


def test_only_counted_tokens_are_too_many() -> None:
    ids = [5] * (MAX_MODEL_LEN + 1)
    assert refused_param(COMPLETIONS, {"prompt": ids}) == "prompt"
    assert refused_param(COMPLETIONS, {"prompt": [[5], ids]}) == "prompt"
    check(COMPLETIONS, {"prompt": ids[1:]}, MAX_MODEL_LEN)
    check(COMPLETIONS, {"prompt": ids}, None)
    check(COMPLETIONS, {"prompt": ids, "truncate_prompt_tokens": -1}, MAX_MODEL_LEN)
    check(COMPLETIONS, {"prompt": "word " * 100 * MAX_MODEL_LEN}, MAX_MODEL_LEN)
    check("/v1/embeddings", {"input": ids}, MAX_MODEL_LEN)  # some servers cut these in pieces


def test_tokens_that_are_known() -> None:
    assert floor_tokens(COMPLETIONS, {"prompt": [1, 2, 3]}) == 3
    assert floor_tokens(COMPLETIONS, {"prompt": [[1], [1, 2]]}) == 2
    assert floor_tokens("/v1/embeddings", {"input": [1, 2, 3]}) == 3
    assert floor_tokens(COMPLETIONS, {"prompt": "abc" * 100}) == 0
    assert floor_tokens(COMPLETIONS, {"prompt": "abc" * 100}, 16) == 18
    assert floor_tokens(COMPLETIONS, {"prompt": ["abc"]}) == 0
    assert floor_tokens(COMPLETIONS, {}) == floor_tokens(CHAT, {"messages": HI}) == 0
    assert output_tokens(CHAT, {"max_tokens": 5, "max_completion_tokens": 6}) == 6
    assert output_tokens(CHAT, {"max_tokens": "5"}) == 5
    assert output_tokens(RESPONSES, {"max_tokens": None, "max_output_tokens": 7}) == 7
    assert output_tokens(CHAT, {}) is None


@pytest.mark.parametrize("asked", [-1000, -(10**30), 10**30, "-7", 1e400, [], {}])
def test_no_request_gives_tokens_back_nor_takes_what_it_cannot_use(asked: object) -> None:
    fields = dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens"), asked)
    for route in PROXIED:
        assert 0 <= (output_tokens(route, fields) or 0) <= 2**31
    for route in ("/tokenize", "/v1/embeddings", "/v1/rerank", "/v1/chat/completions/render"):
        assert output_tokens(route, fields) is None
    # Only what the path itself reads counts.
    assert output_tokens("/v1/messages", {**fields, "max_tokens": 4}) == 4
