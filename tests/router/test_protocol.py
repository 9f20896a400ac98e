"""What a server meets on an open port: half requests, endless ones, other protocols, noise."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable

import httpx
import pytest

from exaslurm.router import protocol
from exaslurm.router.direct import DirectSettings
from tests.tools.fleet import Router, wait_for

BODY = json.dumps(
    {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
).encode()


def talk(router: Router, *parts: bytes, timeout_s: float = 10.0) -> bytes:
    """Send parts, and read until the router closes the connection."""
    with socket.create_connection(("127.0.0.1", router.port), timeout=timeout_s) as sock:
        for part in parts:
            sock.sendall(part)
        answer = b""
        while chunk := sock.recv(65536):
            answer += chunk
        return answer


def head(router: Router, *fields: str) -> bytes:
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {router.key}",
        "Content-Type: application/json",
        *fields,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def message_of(answer: bytes) -> str:
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert error["code"] == status_of(answer)
    return str(error["message"])


@pytest.mark.parametrize("together", [True, False], ids=["one packet", "two packets"])
@pytest.mark.parametrize(
    "wish",
    [
        ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"),
        ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x"),
    ],
    ids=["h2c", "websocket"],
)
def test_a_wish_for_another_protocol_does_not_cost_the_body(
    router: Router, wish: tuple[str, ...], together: bool
) -> None:
    first = head(router, *wish, f"Content-Length: {len(BODY)}") + BODY
    last = head(router, "Connection: close", f"Content-Length: {len(BODY)}") + BODY
    parts = [first + last] if together else [first[:-5], first[-5:] + last]
    answer = talk(router, *parts)
    assert answer.count(b"HTTP/1.1 200 OK") == 2, answer


def test_a_wish_for_another_protocol_with_a_body_in_chunks(router: Router) -> None:
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    wish = ("Connection: Upgrade", "Upgrade: h2c", "Transfer-Encoding: chunked")
    last = head(router, "Connection: close", f"Content-Length: {len(BODY)}") + BODY
    assert talk(router, head(router, *wish) + chunks + last).count(b"HTTP/1.1 200 OK") == 2


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /health HTTP/1.1\r\nX: a\x01b\r\n\r\n",
    ],
    ids=range(8),
)
def test_noise_is_refused_in_openai_form(router: Router, raw: bytes) -> None:
    answer = talk(router, raw)
    assert status_of(answer) == 400
    assert message_of(answer) == "this is not a valid HTTP request"
    assert b"\r\nx-request-id: " in answer


def test_a_head_without_end_is_cut_off(router: Router) -> None:
    endless = b"GET /health HTTP/1.1\r\nX-Long: " + b"a" * (2 * protocol.MAX_HEAD_BYTES)
    started_s = time.monotonic()
    with socket.create_connection(("127.0.0.1", router.port), timeout=10) as sock:
        sock.settimeout(10)
        answer = b""
        # What is still on its way when the router closes makes the kernel reset the connection.
        with contextlib.suppress(ConnectionError):
            sock.sendall(endless)
        with contextlib.suppress(ConnectionError):
            while chunk := sock.recv(65536):
                answer += chunk
    assert answer == b"" or status_of(answer) == 431
    assert time.monotonic() - started_s < protocol.HEAD_TIMEOUT_S / 2
    assert router.http.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("version", "wishes"),
    [(b"1.1", "close, Upgrade"), (b"1.1", "Upgrade,Close"), (b"1.0", "Upgrade")],
)
def test_a_wish_for_another_protocol_is_not_all_that_is_said(
    router: Router, version: bytes, wishes: str
) -> None:
    """Of the connection, and of what the client understands."""
    fields = (f"Connection: {wishes}", "Upgrade: h2c", f"Content-Length: {len(BODY)}")
    asked = head(router, *fields).replace(b"HTTP/1.1", b"HTTP/" + version) + BODY
    answer = talk(router, asked)  # until the router closes the connection
    assert status_of(answer) == 200
    assert b"\r\nconnection: close\r\n" in answer


def test_who_waits_to_be_told_to_go_on_is_told_behind_others(router: Router) -> None:
    length = f"Content-Length: {len(BODY)}"
    first = head(router, length) + BODY
    second = head(router, length, "Expect: 100-continue", "Connection: close")
    with socket.create_connection(("127.0.0.1", router.port), timeout=10) as sock:
        sock.sendall(first + second)
        answer = b""
        while b"HTTP/1.1 100 Continue\r\n\r\n" not in answer:
            chunk = sock.recv(65536)
            assert chunk, answer
            answer += chunk
        assert answer.startswith(b"HTTP/1.1 200 OK")
        sock.sendall(BODY)
        while chunk := sock.recv(65536):
            answer += chunk
    assert answer.count(b"HTTP/1.1 200 OK") == 2


def test_a_length_that_begins_with_thousands_of_zeros(router: Router) -> None:
    """Python makes no number of it, and the request stayed with the router for ever."""
    zeros = "0" * 5000
    announced = f"Content-Length: {zeros}{len(BODY)}"
    assert status_of(talk(router, head(router, announced, "Connection: close") + BODY)) == 200
    nothing = head(router, f"Content-Length: {zeros}", "Connection: close")
    assert status_of(talk(router, nothing)) == 400  # it is no JSON
    unknown = b"POST /v1/completions HTTP/1.1\r\nContent-Length: %b2\r\n\r\n{}" % zeros.encode()
    assert status_of(talk(router, unknown.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))) == 401
    wait_for(lambda: not router.inside.active)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/metrics"])
@pytest.mark.parametrize("what", [b"0\r\nX-Long: ", b"2;x="], ids=["trailer", "extension"])
def test_what_is_no_body_has_an_end(router: Router, path: str, what: bytes) -> None:
    start = head(router, "Transfer-Encoding: chunked").replace(
        b"/v1/chat/completions", path.encode()
    )
    with (
        socket.create_connection(("127.0.0.1", router.port), timeout=10) as sock,
        contextlib.suppress(ConnectionError),
    ):
        sock.sendall(start + what)
        for _ in range(1000):
            sock.sendall(b"a" * 65536)
        pytest.fail("64 MB of it were taken")
    wait_for(lambda: not router.inside.active)
    assert router.http.get("/health").status_code == 200


@pytest.mark.parametrize("ends", [False, True], ids=["idle", "refused"])
def test_who_does_not_read_is_not_waited_for_for_ever(
    make_router: Callable[..., Router], ends: bool
) -> None:
    """What is left for it is too little to stop the writing."""
    router = make_router(slow_client_timeout_s=0.5, body_timeout_s=0.5)
    unknown = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    inside = router.inside

    def unread() -> int:
        return sum(
            one.transport.get_write_buffer_size() for one in inside.connections if one.transport
        )

    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(5)
        sock.connect(("127.0.0.1", router.port))
        left = 0
        while left < 5000:
            sock.sendall(unknown * 100)
            left, before = unread(), -1
            while left != before:  # the kernel takes more of it for a while
                time.sleep(0.02)
                left, before = unread(), left
        if ends:
            sock.sendall(unknown.replace(b"Length: 2", b"Length: 20"))
        wait_for(lambda: not inside.connections, timeout_s=25)


def test_a_head_that_does_not_get_ready_is_not_waited_for(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.2)
    answer = talk(router, b"GET /health HTTP/1.1\r\nX-Half:")
    assert status_of(answer) == 408
    assert talk(router) == b"", "nothing was asked, so nothing is answered"
    # A second request on a connection is watched as the first one is.
    answer = talk(router, b"GET /health HTTP/1.1\r\n\r\n" + b"GET /health")
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"HTTP/1.1 408" in answer


@pytest.mark.parametrize("wish", ["keep-alive", "close"])
def test_an_old_client_reads_to_the_end_of_its_connection(router: Router, wish: str) -> None:
    asked = head(router, f"Connection: {wish}", f"Content-Length: {len(BODY)}") + BODY
    answer = talk(router, asked.replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert status_of(answer) == 200
    assert b"\r\nconnection: close\r\n" in answer


def test_the_time_for_a_head_begins_with_it(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 1.5)
    asked = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.create_connection(("127.0.0.1", router.port), timeout=10) as sock:
        sock.sendall(asked)
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 OK")
        time.sleep(2.0)
        sock.sendall(asked[:10])
        time.sleep(0.4)  # the router looks meanwhile
        sock.sendall(asked[10:])
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 OK")


def test_a_page_does_not_wait_for_its_body_for_ever(
    make_router: Callable[..., Router],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.2)
    router = make_router(direct=DirectSettings(max_s=60))
    asked = head(router, "Content-Length: 10").replace(b"/v1/chat/completions", b"/v1/direct")
    assert talk(router, asked + b"{") == b""
    assert "Traceback" not in caplog.text


def test_idle_clients_and_long_bodies_are_left_alone(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.1)
    with httpx.Client(base_url=router.url, verify=False, trust_env=False, timeout=10) as client:
        assert client.get("/health").status_code == 200
        time.sleep(0.3)
        assert client.get("/health").status_code == 200
    slow = head(router, "Connection: close", f"Content-Length: {len(BODY)}")
    with socket.create_connection(("127.0.0.1", router.port), timeout=10) as sock:
        sock.sendall(slow + BODY[:10])
        time.sleep(0.3)
        sock.sendall(BODY[10:])
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("rest", [b"", b"\r\n"], ids=["in the middle", "whole"])
def test_very_many_fields_are_refused(router: Router, rest: bytes) -> None:
    fields = b"a:\r\n" * (protocol.MAX_FIELDS + 2)
    answer = talk(router, b"GET /health HTTP/1.1\r\n" + fields + rest)
    assert status_of(answer) == 431
    assert str(protocol.MAX_FIELDS) in message_of(answer)
    some = b"a:\r\n" * (protocol.MAX_FIELDS - 5) + b"Connection: close\r\n\r\n"
    assert status_of(talk(router, b"GET /health HTTP/1.1\r\n" + some)) == 200


def test_trailers_are_neither_kept_nor_passed_on(router: Router) -> None:
    chunks = b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
    raw = head(router, "Transfer-Encoding: chunked", "Connection: close") + chunks
    trailers = b"X-Exaslurm-Replica: nobody\r\n" + b"a:\r\n" * (2 * protocol.MAX_FIELDS) + b"\r\n"
    assert status_of(talk(router, raw + trailers)) == 200


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_body_in_very_many_pieces(router: Router, size: int) -> None:
    body = BODY.replace(b"hi", b"hi " * 5000)
    chunks = b"".join(
        b"%x\r\n%s\r\n" % (len(body[at : at + size]), body[at : at + size])
        for at in range(0, len(body), size)
    )
    fields = ("Transfer-Encoding: chunked", "Connection: close")
    answer = talk(router, head(router, *fields) + chunks + b"0\r\n\r\n")
    assert status_of(answer) == 200, answer


@pytest.mark.parametrize("size", [7001, 65536, 300_000, 10_000_000])
def test_large_bodies_and_what_follows_them(router: Router, size: int) -> None:
    """However the packets are cut: the rest of a large body is not read by the parser."""
    unknown = "x" * 250_000
    body = {"model": "chat", "prompt": "x", "max_tokens": 2, "unknown_field": unknown}
    large = json.dumps(body).encode()
    fields = (f"Content-Length: {len(large)}",)
    first = head(router, *fields).replace(b"/v1/chat/completions", b"/v1/completions") + large
    last = head(router, "Connection: close", f"Content-Length: {len(BODY)}") + BODY
    raw = first + first + last
    parts = [raw[at : at + size] for at in range(0, len(raw), size)]
    answer = talk(router, *parts, timeout_s=30)
    assert answer.count(b"HTTP/1.1 200 OK") == 3, answer[:2000]


@pytest.mark.parametrize("chunked", [False, True])
def test_the_beginning_of_a_small_body_right_behind_a_large_one(
    router: Router, chunked: bool
) -> None:
    large = BODY.replace(b"hi", b"hi " * 5000)
    first = head(router, f"Content-Length: {len(large)}") + large
    second = head(router, f"Content-Length: {len(BODY)}") + BODY
    if chunked:
        second = head(router, "Transfer-Encoding: chunked")
        second += b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    last = head(router, "Connection: close", f"Content-Length: {len(BODY)}") + BODY
    with socket.create_connection(("127.0.0.1", router.port), timeout=10) as sock:
        sock.sendall(first + second[:-10])
        answer = b""
        while b'"choices"' not in answer:
            answer += sock.recv(65536)
        sock.sendall(second[-10:] + last)
        while chunk := sock.recv(65536):
            answer += chunk
    assert answer.count(b"HTTP/1.1 200 OK") == 3, answer[-500:]


def test_a_large_body_that_is_refused_does_not_cost_the_connection(router: Router) -> None:
    large = b'{"model": "nope", "prompt": "' + b"x" * 60_000 + b'"}'
    first = head(router, f"Content-Length: {len(large)}") + large
    last = head(router, "Connection: close", f"Content-Length: {len(BODY)}") + BODY
    raw = first + last
    parts = [raw[at : at + 20_000] for at in range(0, len(raw), 20_000)]
    answer = talk(router, *parts)
    assert answer.count(b"HTTP/1.1 404") == 1
    assert answer.count(b"HTTP/1.1 200 OK") == 1


@pytest.mark.parametrize("length", [10**9, 10**12])
def test_a_body_announced_too_large_is_refused_before_it_comes(
    router: Router, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "LINGER_S", 0.2)
    answer = talk(router, head(router, f"Content-Length: {length}"))
    assert status_of(answer) == 413
    assert "larger" in message_of(answer)


@pytest.mark.parametrize("noise", [b"\x00\x01\r\n\r\n", b"GET / HTTP/1.1\r\nno field\r\n\r\n"])
@pytest.mark.parametrize("before", [["ask"], ["ask", "ask"], ["page"], ["page", "ask"]])
def test_noise_takes_no_answer_from_those_who_asked_before(
    router: Router, before: list[str], noise: bytes
) -> None:
    ask = head(router, f"Content-Length: {len(BODY)}") + BODY
    page = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = talk(router, b"".join(ask if kind == "ask" else page for kind in before) + noise)
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == len(before)
    assert answer.count(b'"choices"') == before.count("ask")


def test_a_body_gone_wrong_takes_no_answer_from_those_who_asked_before(router: Router) -> None:
    ask = head(router, f"Content-Length: {len(BODY)}") + BODY
    wrong = head(router, "Transfer-Encoding: chunked") + b"5\r\n{" + b"no chunk"
    answer = talk(router, ask + wrong)
    first, _, second = answer.partition(b"HTTP/1.1 400 ")
    assert first.count(b"HTTP/1.1 200 OK\r\n") == 1
    assert b'"choices"' in first
    assert b"this is not a valid HTTP request" in second
