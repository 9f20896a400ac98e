"""Routers whose host was lost do not stay on the list."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from exaslurm.core.codec import dumps
from exaslurm.core.submission import Endpoint, RouterAddress
from exaslurm.supervisor.loop import Manager
from exaslurm.supervisor.routers import SILENT_S, LostRouters, answers
from exaslurm.util.files import write_atomic
from tests.supervisor.conftest import Site

HERE = socket.gethostname()


def router(host: str, url: str = "http://127.0.0.1:1") -> RouterAddress:
    return RouterAddress(url=url, host=host, pid=os.getpid(), start_ticks=1, started_s=1.0)


class Watched(Site):
    silent: frozenset[str] = frozenset()

    def managers(self) -> Sequence[Manager]:
        return [
            LostRouters(
                run_dir=self.run_dir,
                monotonic=self.cluster.monotonic,
                answers=lambda router, _: router.host not in self.silent,
            )
        ]

    def enter(self, *routers: RouterAddress) -> None:
        endpoint = Endpoint(deployment="hello", routers=routers)
        write_atomic(self.run_dir.endpoint, dumps(endpoint))

    @property
    def listed(self) -> list[str]:
        return [router.host for router in self.run_dir.read_routers()]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_one_that_is_silent_for_an_hour_goes(watched: Watched) -> None:
    watched.enter(router("login1"), router("login2"), router(HERE))
    watched.silent = frozenset(("login1", HERE))
    watched.run(SILENT_S / 2)
    assert watched.listed == ["login1", "login2", HERE]
    watched.run(SILENT_S / 2 + 100)
    assert watched.listed == ["login2", HERE]  # those of this host are told apart by their process
    # One that cannot be asked, and lives, enters itself again, and has its time again.
    watched.enter(router("login1"))
    watched.run(SILENT_S / 2)
    assert watched.listed == ["login1"]


def test_silence_for_a_while_is_forgiven(watched: Watched) -> None:
    watched.enter(router("login1"))
    for silent in (("login1",), (), ("login1",)):
        watched.silent = frozenset(silent)
        watched.run(0.7 * SILENT_S)
        assert watched.listed == ["login1"]


def test_without_a_list_there_is_nothing_to_do(watched: Watched) -> None:
    watched.run(200)
    assert not watched.run_dir.endpoint.exists()


def test_who_answers() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        own = router(HERE, f"http://127.0.0.1:{server.getsockname()[1]}")

        def answer() -> None:
            with contextlib.suppress(OSError), server.accept()[0] as client:
                client.recv(4096)
                client.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert not answers(replace(own, host="login9"), HERE)
        assert answers(own, HERE)
        thread.join(10)
    assert not answers(own, HERE)
