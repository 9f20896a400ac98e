"""Requests that are wrong do the router no harm, and nobody else's request either."""

from __future__ import annotations

import json
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


def test_a_case_is_the_same_again() -> None:
    assert [make(seed, KEY) for seed in range(200)] == [make(seed, KEY) for seed in range(200)]


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
