"""What the router reads in a body, and what it calls unreadable."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exaslurm.router.errors import RequestError
from exaslurm.router.parse import Peek, peek

CHAT = "/v1/chat/completions"
JSON = b"application/json"


def look(raw: bytes | str, route: str = CHAT) -> Peek:
    return peek(route, JSON, raw if isinstance(raw, bytes) else raw.encode())


def refusal(raw: bytes | str) -> RequestError:
    with pytest.raises(RequestError) as caught:
        look(raw)
    assert caught.value.status == 400
    return caught.value


def test_model_stream_and_data() -> None:
    assert look('{"model":"m","stream":true}')[:3] == ("m", True, {"model": "m", "stream": True})
    assert look("{}")[:2] == (None, False)
    assert look('{"model":null,"stream":null}')[:2] == (None, False)
    assert look('{"model":""}').model is None  # vLLM takes it for its only model


@pytest.mark.parametrize(
    ("value", "stream"),
    [("true", True), ('"true"', True), ('"Yes"', True), ("1", True), ("1.0", True), ('"on"', True)]
    + [(v, False) for v in ("false", '"false"', "0", '"off"', "[]", "{}", "2", '"x"', "null")],
)
def test_stream_is_read_as_vllm_reads_it(value: str, stream: bool) -> None:
    assert look(f'{{"stream":{value}}}').stream is stream


@pytest.mark.parametrize(
    "raw",
    [
        b'{"x":NaN,"y":[Infinity,-Infinity],"model":"m"}',
        b'{"x":"\\ud800","model":"m"}',
        b'\xef\xbb\xbf{"model":"m"}',
        '{"model":"m"}'.encode("utf-16"),
        '{"model":"m"}'.encode("utf-32-be"),
        b'{"x":1e999,"model":"m"}',
        b'{"x":' + b"9" * 30 + b',"model":"m"}',
        b'{"model":"other","model":"m"}',
        b' \r\n\t{"mod\\u0065l":"m"}\n',
        b'{"x":' + b"[" * 500 + b"]" * 500 + b',"model":"m"}',
    ],
)
def test_what_vllms_parser_takes_is_read(raw: bytes) -> None:
    assert look(raw).model == "m"


def test_what_is_not_json_is_shown_where() -> None:
    error = refusal('{"model":"m",\n "x":}')
    assert error.message == "the body is not JSON: Expecting value at line 2 column 6"
    assert "line 1 column 1" in refusal("").message
    assert refusal(b'{"x":"\xff"}').message == "the body is not JSON: byte 6 is no utf-8"
    assert "digits" in refusal('{"x":' + "9" * 5000 + "}").message


@pytest.mark.parametrize("depth", [200_000, 1_000_000])
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("pair", ["[]", '{"":}'])
def test_deep_nesting_neither_crashes_nor_passes(depth: int, closed: bool, pair: str) -> None:
    opening, closing = pair[:-1], pair[-1]
    raw = '{"x":' + opening * depth + ("1" + closing * depth + "}") * closed
    assert refusal(raw).message == "the body is nested too deeply"


@pytest.mark.parametrize(
    ("raw", "kind"), [("[]", "a list"), ('"x"', "a string"), ("null", "null"), ("1.5", "a number")]
)
def test_a_body_is_an_object(raw: str, kind: str) -> None:
    assert refusal(raw).message == f"the body must be a JSON object, not {kind}"


@pytest.mark.parametrize("model", [5, True, ["m"], {"m": 1}])
def test_a_model_is_a_string(model: Any) -> None:
    assert refusal(json.dumps({"model": model})).param == "model"


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (CHAT, '{"model":"m","messages":[{"role":"user"}]}'),
        (CHAT, '{"messages" : [{"role":"user"}],"model":"m"}'),
        ("/v1/completions", '{"model":"m","prompt":"x"}'),
        ("/v1/embeddings", '{"model":"m","input":["x"]}'),
        ("/v1/embeddings", '{"model":"m","messages":[]}'),
        ("/tokenize", '{"messages":[]}'),
    ],
)
def test_where_the_prompt_starts(route: str, body: str) -> None:
    at = look(body, route).prompt_at
    value = next(v for k, v in json.loads(body).items() if k != "model")
    assert body[at:].lstrip(": ").startswith(json.dumps(value, separators=(",", ":"))[:3])


def test_no_prompt_is_offset_zero() -> None:
    assert look('{"model":"m"}').prompt_at == 0
    assert look('{"messages":[]}', "/unknown").prompt_at == 0


@settings(deadline=None)
@given(st.binary() | st.text('{}[]":,\\model1eN \n').map(str.encode))
def test_what_json_loads_reads_is_read_the_same(raw: bytes) -> None:
    try:
        expected = json.loads(raw)
    except (ValueError, RecursionError):
        expected = None
    if isinstance(expected, dict) and isinstance(expected.get("model", ""), str):
        assert repr(look(raw).data) == repr(expected)
    else:
        refusal(raw)


def test_the_stack_is_as_deep_as_before() -> None:
    limit = sys.getrecursionlimit()
    refusal("[" * 100_000)
    assert sys.getrecursionlimit() == limit
