"""Clients that go away, and what must not be left of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.tools.farm import EVENT, STREAM_HEAD, FarmThread, Peer, chunk
from tests.tools.fleet import Router, wait_for

MakeFarm = Callable[..., FarmThread]
RouterOf = Callable[..., Router]
# An engine notices within so long that nobody waits for its answer any more.
NOTICED_S = 0.3


def silent(peer: Peer) -> None:
    """No answer ever."""


def begun(peer: Peer) -> None:
    """The beginning of an answer: a stream if one was asked for, else a long body."""
    if json.loads(peer.body).get("stream"):
        peer.write(STREAM_HEAD + chunk(EVENT))
    else:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
        peer.write(head + b"Content-Length: 9000000\r\n\r\n" + b"x" * 3_000_000)


def send(router: Router, *, stream: bool) -> socket.socket:
    body = json.dumps({"model": "chat", "prompt": "x", "stream": stream})
    client = socket.create_connection(("127.0.0.1", router.port), timeout=5)
    client.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Authorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s"
        % (router.key.encode(), len(body), body.encode())
    )
    return client


def status(router: Router) -> tuple[int, int]:
    """Requests in flight, and outstanding at replicas."""
    page: dict[str, Any] = router.http.get("/status").json()
    return page["in_flight"], sum(replica["outstanding"] for replica in page["replicas"])


@pytest.mark.parametrize("has_begun", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_the_engine_is_told(
    make_farm: MakeFarm, router_of: RouterOf, stream: bool, has_begun: bool
) -> None:
    """A client that closed its connection was not noticed before the answer's head, or in no mode
    at all, and the engine computed on for nobody.

    https://github.com/vllm-project/production-stack/issues/634
    https://github.com/sgl-project/sglang/pull/11399
    """
    farm = make_farm(1, begun if has_begun else silent)
    router = router_of(farm)
    client = send(router, stream=stream)
    wait_for(lambda: farm.running[0] == 1)
    if has_begun:
        assert client.recv(10)
    client.close()
    wait_for(lambda: farm.aborted == 1, timeout_s=NOTICED_S)
    wait_for(lambda: status(router) == (0, 0), timeout_s=1)


def test_counters_return_to_zero(make_farm: MakeFarm, router_of: RouterOf) -> None:
    """Where disconnects were polled for, middleware hid them, and the counter of requests in
    flight stayed up for each client that left at a bad moment.

    https://github.com/vllm-project/production-stack/pull/1040
    """
    farm = make_farm(2)
    router = router_of(farm)
    body = b'{"model": "chat", "prompt": "x", "stream": true}'
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {router.key}\r\nX-Do: events=3 gap=0.002\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    raw = head + body
    # From the first byte of the request to after the last one of the answer.
    for step in range(120):
        client = socket.create_connection(("127.0.0.1", router.port), timeout=5)
        client.sendall(raw[: len(raw) * min(step, 40) // 40])
        if step > 40:
            time.sleep((step - 40) * 0.0002)
        client.close()
    wait_for(lambda: status(router) == (0, 0) and farm.running.total() == 0, timeout_s=2)
    page = router.http.get("/metrics").text
    assert 'status="499"' in page
    good = router.http.post("/v1/completions", json={"model": "chat", "prompt": "x"})
    assert good.status_code == 200


KILLED = """
import socket, sys
raw = sys.argv[2].encode()
socks = []
for _ in range(40):
    sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    sock.sendall(raw)
    socks.append(sock)
print("sent", flush=True)
sys.stdin.read()
"""


def test_a_client_that_is_killed_leaves_nothing(make_farm: MakeFarm, router_of: RouterOf) -> None:
    """Requests that were admitted stayed counted for ever when their client's process died, until
    the router refused everyone.

    https://github.com/ai-dynamo/dynamo/issues/12315
    """
    farm = make_farm(2, silent)
    router = router_of(farm)
    body = '{"model": "chat", "prompt": "x"}'
    raw = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {router.key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    )
    client = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(router.port), raw],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with client:
        assert client.stdout is not None
        assert client.stdout.readline()
        wait_for(lambda: farm.running.total() == 40)
        assert status(router) == (40, 40)
        os.kill(client.pid, signal.SIGKILL)
    wait_for(lambda: farm.aborted == 40, timeout_s=1)
    wait_for(lambda: status(router) == (0, 0), timeout_s=1)
