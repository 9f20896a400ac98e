"""Bytes pass unchanged: what an engine sees of a request, and a client of an answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest

from tests.tools.fleet import INNER, Router
from tests.tools.rawengine import RawEngine


@pytest.fixture
def engine() -> Iterator[RawEngine]:
    engine = RawEngine()
    yield engine
    engine.close()


@pytest.fixture
def raw_router(make_router: Callable[..., Router], engine: RawEngine) -> Router:
    router = make_router()
    router.replace(engine.replica())
    return router


ODD_BODY = (
    b'{ "messages":[{"role":"user","content":"\\u00e9 \xc3\xa9"}],  "model" : "chat",\n'
    b'"tools":[{"type":"function","function":{"name":"f"}}],"stream":null,"vllm_only":1e2 }\n'
)


def test_a_request_arrives_as_it_was_sent(raw_router: Router, engine: RawEngine) -> None:
    answer = raw_router.stranger.post(
        "/v1/chat/completions?x=%2F+%20&y",
        content=ODD_BODY,
        headers={
            "Authorization": f"Bearer {raw_router.key}",
            "Content-Type": "application/json",
            "X-Request-Id": "my-req.1",
            "X-Custom": "kept",
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "Connection": "X-Hop, keep-alive",
            "X-Hop": "dropped",
            "TE": "trailers",
            "Expect": "100-continue",
            "Cookie": "a=b",
        },
    )
    assert answer.status_code == 200
    assert answer.headers["x-request-id"] == "my-req.1"
    head, _, body = engine.requests[0].partition(b"\r\n\r\n")
    assert body == ODD_BODY
    assert head.startswith(b"POST /v1/chat/completions?x=%2F+%20&y HTTP/1.1\r\n")
    fields = [line.lower() for line in head.split(b"\r\n")[1:]]
    assert b"authorization: bearer " + INNER.encode() in fields
    assert raw_router.key.encode() not in engine.requests[0]
    assert b"x-request-id: my-req.1" in fields
    assert b"x-custom: kept" in fields
    assert b"cookie: a=b" in fields
    assert b"content-type: application/json" in fields
    assert b"host: " + engine.url.removeprefix("http://").encode() in fields
    assert b"content-length: %d" % len(ODD_BODY) in fields
    names = [field.split(b":")[0] for field in fields]
    assert len(names) == len(set(names))
    assert not {b"x-hop", b"te", b"expect", b"transfer-encoding"} & set(names)


def test_an_answer_arrives_as_it_was_sent(raw_router: Router, engine: RawEngine) -> None:
    body = b'{ "odd":  "\xc3\xa9" }'
    engine.answer = (
        b"HTTP/1.1 422 Unprocessable\r\nContent-Type: application/x-odd\r\nX-Custom: a\r\n"
        b"X-Custom: b\r\nServer: engine\r\nKeep-Alive: timeout=5\r\nConnection: close\r\n"
        b"Content-Encoding: gzip\r\nSet-Cookie: c=d\r\nContent-Length: %d\r\n\r\n" % len(body)
    ) + body
    headers = {"Authorization": f"Bearer {raw_router.key}", "Accept-Encoding": "gzip"}
    with raw_router.stranger.stream(
        "POST", "/tokenize", json={"prompt": "x"}, headers=headers
    ) as answer:
        raw = b"".join(answer.iter_raw())
    assert answer.status_code == 422
    assert raw == body
    assert answer.headers["content-type"] == "application/x-odd"
    assert answer.headers.get_list("x-custom") == ["a", "b"]
    assert answer.headers["server"] == "engine"
    assert answer.headers["set-cookie"] == "c=d"
    assert answer.headers["x-exaslurm-replica"] == "c000-r0000"
    assert "keep-alive" not in answer.headers
    assert len(answer.headers.get_list("date")) == 1


@pytest.mark.parametrize("ident", ["a b", "x" * 200, "", "é"])
def test_a_harmful_request_id_is_replaced(
    raw_router: Router, engine: RawEngine, ident: str
) -> None:
    answer = raw_router.stranger.post(
        "/tokenize",
        json={"prompt": "x"},
        headers={"Authorization": f"Bearer {raw_router.key}", "X-Request-Id": ident.encode()},
    )
    assert answer.headers["x-request-id"] not in (ident, "")
    assert answer.headers["x-request-id"].encode() in engine.requests[0]


def test_chunked_requests_and_large_bodies(raw_router: Router, engine: RawEngine) -> None:
    body = b'{"prompt": "' + b"x" * 8_000_000 + b'"}'
    pieces = (body[at : at + 100_000] for at in range(0, len(body), 100_000))
    answer = raw_router.stranger.post(
        "/v1/completions",
        content=pieces,
        headers={"Authorization": f"Bearer {raw_router.key}"},
    )
    assert answer.status_code == 200
    assert engine.requests[0].partition(b"\r\n\r\n")[2] == body


def test_a_form_names_its_model(raw_router: Router, engine: RawEngine) -> None:
    replica = engine.replica()
    other = dataclasses.replace(replica, id="c000-r0001", served_names=("whisper",))
    raw_router.replace(dataclasses.replace(replica, url="http://127.0.0.1:1"), other)
    answer = raw_router.stranger.post(
        "/v1/audio/transcriptions",
        data={"model": "whisper"},
        files={"file": ("a.wav", b"\r\n\x00name=model\r\n\r\nchat\r\n")},
        headers={"Authorization": f"Bearer {raw_router.key}"},
    )
    assert answer.status_code == 200
    assert b"\x00name=model" in engine.requests[0]
