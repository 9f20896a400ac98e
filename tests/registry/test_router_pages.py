"""Asking routers what they have counted: the right ones, and nobody else."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from exaslurm.core.codec import dumps
from exaslurm.core.submission import Endpoint, RouterAddress
from exaslurm.keys.secrets import ensure_secrets
from exaslurm.registry.router_pages import router_pages
from exaslurm.rundir import RunDir
from exaslurm.util.files import write_atomic
from exaslurm.util.process import start_ticks

HERE = socket.gethostname()


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "hello")
    made.make()
    ensure_secrets(made)
    return made


@contextmanager
def listening(server: socket.socket) -> Iterator[list[bytes]]:
    """Somebody who answers whatever is asked; what it was asked."""
    heard: list[bytes] = []
    server.listen()

    def answer() -> None:
        with suppress(OSError):
            while True:
                with server.accept()[0] as client:
                    heard.append(client.recv(4096))
                    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield heard
    finally:
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(10)


def enter(run_dir: RunDir, url: str, host: str) -> None:
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    own = RouterAddress(url=url, host=host, pid=os.getpid(), start_ticks=ticks, started_s=1.0)
    write_atomic(run_dir.endpoint, dumps(Endpoint(deployment="hello", routers=(own,))))


@pytest.mark.parametrize("unix", [False, True])
def test_the_key_goes_to_no_stranger_at_the_same_address(run_dir: RunDir, unix: bool) -> None:
    """A router of another host listens on its loopback address: here, that is anybody's."""
    server = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
    path = run_dir.path / "r.sock"
    server.bind(str(path) if unix else ("127.0.0.1", 0))
    url = f"unix:{path}" if unix else f"http://127.0.0.1:{server.getsockname()[1]}"
    with listening(server) as heard:
        enter(run_dir, url, "login9")
        (page,) = router_pages(run_dir).values()
        assert page.text is None
        assert heard == []
        enter(run_dir, url, HERE)
        (page,) = router_pages(run_dir).values()
        assert page.text == "ok"
