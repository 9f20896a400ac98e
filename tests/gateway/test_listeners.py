"""Sockets that a router listens on."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

import pytest

from exaslurm.core.plan import PortPolicy
from exaslurm.errors import UserError
from exaslurm.gateway.listeners import Listeners, listen_tcp, listen_unix

POLICY = PortPolicy(first=24500, last=24999, block=500)


def test_a_port_in_use_is_found_though_ports_are_shared() -> None:
    with listen_tcp("127.0.0.1", 0, POLICY) as one, listen_tcp("127.0.0.1", 0, POLICY) as two:
        assert one.getsockname() != two.getsockname()
        with pytest.raises(UserError, match="is in use"):
            listen_tcp("127.0.0.1", one.getsockname()[1], POLICY)


def test_more_sockets_on_one_port_and_each_takes_its_part() -> None:
    listeners = Listeners([listen_tcp("127.0.0.1", 0, POLICY)])
    listeners.widen(3)
    with contextlib.closing(listeners):
        assert {sock.getsockname() for sock in listeners.tcp} == {("127.0.0.1", listeners.port)}
        # More sockets than workers: none is without one.
        shares = [listeners.share(index, 2).tcp for index in range(2)]
        assert [len(share) for share in shares] == [2, 1]
        assert set(shares[0]) | set(shares[1]) == set(listeners.tcp)
        with contextlib.ExitStack() as stack:
            for _ in range(60):
                stack.enter_context(socket.create_connection(("127.0.0.1", listeners.port)))
            counts = [accept_all(sock) for sock in listeners.tcp]
        assert sum(counts) == 60
        assert min(counts) > 5


def accept_all(sock: socket.socket) -> int:
    sock.setblocking(False)
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.accept()[0].close()
            count += 1
    return count


def test_descriptors_on_a_command_line(tmp_path: Path) -> None:
    listeners = Listeners([listen_tcp("127.0.0.1", 0, POLICY)], listen_unix(tmp_path / "u", 0o600))
    with contextlib.closing(listeners):
        copies = listeners.copies()
        again = Listeners.of_text(copies.to_text())
        assert again.port == listeners.port
        assert again.unix is not None
        for sock in copies.all:
            sock.detach()
        again.close()
    assert Listeners.of_text(";").all == []


@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_a_unix_socket_has_its_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "router.sock"
    with listen_unix(path, mode):
        assert stat.S_IMODE(path.stat().st_mode) == mode
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    assert os.listdir(tmp_path) == ["router.sock"]


def test_only_a_socket_without_a_listener_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "router.sock"
    with listen_unix(path, 0o600), pytest.raises(UserError, match="another process listens"):
        listen_unix(path, 0o600)
    with listen_unix(path, 0o600):  # that one has ended
        pass
    path.unlink()
    path.write_text("mine")
    with pytest.raises(UserError, match="no socket"):
        listen_unix(path, 0o600)
    assert path.read_text() == "mine"
    with pytest.raises(UserError, match="longer than"):
        listen_unix(tmp_path / ("x" * 100), 0o600)
    with pytest.raises(UserError, match="No such file"):
        listen_unix(tmp_path / "none" / "x", 0o600)
