"""Engines, and what stands between, that answer otherwise than HTTP or vLLM would have it."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.tools.fleet import Router, wait_for
from tests.tools.rawengine import RawEngine

ASK = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    b"9\r\ndata: 1\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n"
)


def plain(body: bytes, status: bytes = b"200 OK", more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n%b\r\n%b" % (status, len(body), more, body)


@pytest.fixture
def ask(make_router: Callable[..., Router]) -> Iterator[Callable[[bytes], httpx.Response]]:
    """What a client gets for what an engine answers, and that nothing of it is left over."""
    engine = RawEngine()
    router = make_router()
    router.replace(engine.replica())

    def ask(answer: bytes) -> httpx.Response:
        engine.answer = answer
        given = router.http.post("/v1/chat/completions", json=ASK)
        # It cuts the connection after each answer, and the next request must not meet that.
        (target,) = router.inside.table.targets
        wait_for(lambda: target.endpoint.open == 0)
        engine.answer = plain(b'{"next": 1}')
        assert router.http.post("/v1/chat/completions", json=ASK).json() == {"next": 1}
        figures = router.http.get("/metrics")
        assert figures.status_code == 200
        found = re.search(r"^exaslurm_router_outstanding\{.*\} (\d+)$", figures.text, re.MULTILINE)
        assert found
        assert found.group(1) == "0"
        return given

    yield ask
    engine.close()


@pytest.mark.parametrize(
    "surplus",
    [plain(b'{"of another": 1}'), plain(b"{}", b"500 Oops"), b"EXTRA", b"HTTP/1.1 200 OK\r\nx: "],
)
def test_what_follows_an_answer_is_nobodys(
    ask: Callable[[bytes], httpx.Response], surplus: bytes
) -> None:
    answer = ask(plain(b'{"mine": 1}') + surplus)
    assert (answer.status_code, answer.json()) == (200, {"mine": 1})
    stream = ask(STREAM + b"\r\n" + surplus)
    assert (stream.status_code, stream.content) == (200, b"data: 1\n\ndata: [DONE]\n\n")


def test_trailers_do_not_become_header_fields(ask: Callable[[bytes], httpx.Response]) -> None:
    answer = ask(STREAM + b"x-late: 1\r\n\r\n")
    assert "x-late" not in answer.headers
    assert answer.content == b"data: 1\n\ndata: [DONE]\n\n"


@pytest.mark.parametrize(
    "field", [b"x-big: " + b"a" * 1_200_000, b"x-many: y\r\n" * 120_000 + b"x: y"]
)
def test_a_head_without_measure_is_not_collected(
    ask: Callable[[bytes], httpx.Response], field: bytes
) -> None:
    answer = ask(plain(b"{}", more=field + b"\r\n"))
    assert answer.status_code == 502
    assert "larger than" in answer.json()["error"]["message"]


def test_endless_interim_answers_are_not_waited_for(
    ask: Callable[[bytes], httpx.Response],
) -> None:
    assert ask(b"HTTP/1.1 103 Early Hints\r\nlink: <a>\r\n\r\n" * 40_000).status_code == 502


@pytest.mark.parametrize("status", [b"000 None", b"099 Low", b"1000 High"])
def test_a_status_that_is_none(ask: Callable[[bytes], httpx.Response], status: bytes) -> None:
    assert ask(plain(b"{}", status)).status_code == 502


def test_a_compressed_stream_passes_as_it_is(ask: Callable[[bytes], httpx.Response]) -> None:
    """Its events cannot be read, so none may be put behind them."""
    text = b"data: 1\n\ndata: [DONE]\n\n"
    fields = b"content-type: text/event-stream\r\ncontent-encoding: gzip\r\n"
    assert ask(plain(gzip.compress(text), more=fields)).content == text


@pytest.mark.parametrize("count", [b"9" * 26, b"9" * 5000, b"-5", b"1e99", b'"5"', b"null"])
def test_counts_of_tokens_that_are_none(
    ask: Callable[[bytes], httpx.Response], count: bytes
) -> None:
    body = b'{"usage":{"prompt_tokens":%b,"completion_tokens":%b}}' % (count, count)
    answer = ask(plain(body))
    assert (answer.status_code, answer.content) == (200, body)


def test_an_answer_without_content_has_no_length(ask: Callable[[bytes], httpx.Response]) -> None:
    answer = ask(b"HTTP/1.1 204 No Content\r\nx-kept: yes\r\n\r\n")
    assert (answer.status_code, answer.content, answer.headers["x-kept"]) == (204, b"", "yes")
    assert "content-length" not in answer.headers


def test_a_coding_that_ends_with_the_connection(ask: Callable[[bytes], httpx.Response]) -> None:
    answer = ask(b'HTTP/1.1 200 OK\r\ntransfer-encoding: identity\r\n\r\n{"ok": 1}')
    assert (answer.status_code, answer.json()) == (200, {"ok": 1})


def test_a_long_refusal_is_not_cut(ask: Callable[[bytes], httpx.Response]) -> None:
    answer = ask(plain(b'{"error":{"message":"%b"}}' % (b"b" * 400_000), b"503 Busy"))
    assert answer.status_code == 502
    assert "it answered 503" in answer.json()["error"]["message"]
