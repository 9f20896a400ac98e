"""Connections to our own routers; HTTPS is tested with a real one in tests/gateway."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from pathlib import Path

import pytest

from exaslurm.util.reach import connect


def test_over_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "router.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        server.settimeout(10)

        def answer() -> None:
            with server.accept()[0] as client:
                client.recv(1000)
                client.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with contextlib.closing(connect(f"unix:{path}", timeout_s=5)) as connection:
            connection.request("GET", "/health")
            assert connection.getresponse().status == 204
        thread.join(10)
    with pytest.raises(ConnectionRefusedError):
        connect(f"unix:{path}", timeout_s=5).connect()


def test_what_addresses_mean() -> None:
    plain = connect("http://node:8000/v1", timeout_s=5)
    assert (plain.host, plain.port) == ("node", 8000)
    assert connect("http://[::1]:8000", timeout_s=5).host == "::1"
    assert isinstance(connect("https://node", timeout_s=5), http.client.HTTPSConnection)


@pytest.mark.parametrize("url", ["", "node:8000", "ftp://node:1", "http://node:port", "http://"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        connect(url, timeout_s=5)
