"""Requests that are wrong do the router no harm, and nobody else's request either."""

from __future__ import annotations

import json
import os
import socket
import struct

from tests.tools.fuzz_cases import good, make, request
from tests.tools.fuzz_http import KEY, fuzz, started


def test_wrong_requests_do_no_harm() -> None:
    report = fuzz(600, first=20_000)
    assert report.failures == []
    assert report.good >= 4  # between the wrong ones, and after them
    assert report.in_flight == report.outstanding == 0
    assert report.fds[1] <= report.fds[0] + 2
    # It does reach the engine, and it is told apart.
    assert report.forwarded > 100
    assert {200, 400, 401, 404, 405} <= set(report.statuses)
    assert len(report.kinds) > 10


def test_what_is_fuzzed_is_what_shall_be_tested() -> None:
    with started() as (router, _):
        status, text = router.get("/status")
        assert status == 200
        assert json.loads(text)["compiled"] == ("EXASLURM_TEST_COMPILED" in os.environ)


def test_a_case_is_the_same_again() -> None:
    assert [make(seed, KEY) for seed in range(200)] == [make(seed, KEY) for seed in range(200)]


def test_requests_that_wish_for_something_else() -> None:
    wish = b"GET /health HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    with started() as (router, _):
        assert exchange(router.port, wish * 500).count(b"HTTP/1.1 200 OK") == 500
        for target in (b"/health", b"router:80", b"*", b"/v1/completions"):
            answer = exchange(router.port, b"CONNECT %b HTTP/1.1\r\nHost: x\r\n\r\n" % target)
            assert answer.startswith(b"HTTP/1.1 405 "), answer
        assert "Traceback" not in router.log.read_text()


def exchange(port: int, sent: bytes) -> bytes:
    """What comes until each request has begun to be answered, or the connection ends."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(sent)
        while answer.count(b"HTTP/1.1 ") < sent.count(b"HTTP/1.1") and (part := client.recv(65536)):
            answer += part
    return answer


def test_wrong_keys_are_forgotten() -> None:
    long = b"x" * 60_000
    with started() as (router, _):
        for number in range(1000):
            if number == 200:
                before_kib = router.rss_kib()
            assert exchange(router.port, good(long)).startswith(b"HTTP/1.1 401 ")
        assert router.rss_kib() - before_kib < 16 * 1024  # 48 MB of keys have come by


def test_clients_that_leave_pages_and_requests_unread_are_not_in_the_log() -> None:
    key = KEY.encode()
    wanted = request("/metrics", b"", key, method=b"GET") + good(key) * 3
    with started() as (router, _):
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", router.port), timeout=10) as client:
                client.sendall(wanted)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", router.port), timeout=10) as client:
                client.sendall(wanted)
        status, text = router.get("/v1/models")
        assert status == 200
        assert json.loads(text)["data"][0]["id"] == "fuzzed"
        assert "Traceback" not in router.log.read_text()
