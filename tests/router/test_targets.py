"""Requests that mean a known path but write it otherwise, and bodies that break off in disorder."""

from __future__ import annotations

import pytest

from tests.router.test_protocol import BODY, message_of, status_of, talk
from tests.tools.fleet import Router


def request(router: Router, target: str, *fields: str) -> bytes:
    lines = [
        f"POST {target} HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {router.key}",
        "Content-Type: application/json",
        "Connection: close",
        *fields,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.mark.parametrize(
    "target",
    [
        "/v1/chat/completions?api-version=1",
        "http://x/v1/chat/completions",
        "http://x:8000/v1/chat/completions?a=%2F",
        "/v1/%63hat/completions",
        "/v1%2Fchat/completions",
    ],
)
def test_a_path_may_be_written_in_several_ways(router: Router, target: str) -> None:
    answer = talk(router, request(router, target, f"Content-Length: {len(BODY)}") + BODY)
    assert status_of(answer) == 200, answer


@pytest.mark.parametrize(
    "target",
    [
        "//v1/chat/completions",
        "/v1/chat/completions/",
        "/v1/chat/completions/../../sleep",
        "/v1/chat/completions%3Fx",
        "http://x/sleep",
        "/%00",
        "*",
    ],
)
def test_other_paths_stay_unknown(router: Router, target: str) -> None:
    answer = talk(router, request(router, target, f"Content-Length: {len(BODY)}") + BODY)
    assert status_of(answer) == 404, answer


@pytest.mark.parametrize(
    "body", [b"zz\r\nhello", b"5\r\nhelloxx\r\n", b"-1\r\n", b"fffffffffffffffff\r\n"]
)
@pytest.mark.parametrize("together", [True, False])
def test_a_body_that_is_not_framed_is_told_so(router: Router, body: bytes, together: bool) -> None:
    head = request(router, "/v1/chat/completions", "Transfer-Encoding: chunked")
    answer = talk(router, head + body) if together else talk(router, head, body)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert status_of(answer) == 400
    assert message_of(answer) == "this is not a valid HTTP request"


def test_an_unknown_transfer_coding_is_told_so(router: Router) -> None:
    head = request(router, "/v1/chat/completions", "Transfer-Encoding: xchunked")
    assert status_of(talk(router, head + BODY)) == 400
