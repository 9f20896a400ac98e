"""What waits for the end of a turn never comes too late: not after the next thing, not never."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from exaslurm.registry.replica import StaticSource
from exaslurm.router.app import build_app
from exaslurm.router.config import RouterConfig
from exaslurm.router.protocol import RouterProtocol

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


class Wire(asyncio.Transport):
    """What the router does to a client's connection. ``full``: told so with the next write."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[bytes | str] = []
        self.full: Callable[[], None] | None = None

    def write(self, data: Any) -> None:
        self.done.append(bytes(data))
        if self.full is not None:
            self.full()

    def close(self) -> None:
        self.done.append("close")

    def abort(self) -> None:
        self.done.append("abort")

    def pause_reading(self) -> None:
        self.done.append("pause reading")

    def is_closing(self) -> bool:
        return "close" in self.done


def played(play: Callable[[RouterProtocol, Wire], Awaitable[None]]) -> list[bytes | str]:
    """What a connection did."""

    async def run() -> list[bytes | str]:
        app = build_app(RouterConfig(deployment="hello"), StaticSource([]), None)
        router = app.state.router
        router.start()
        settings = uvicorn.Config(app, log_config=None)
        settings.load()
        client = RouterProtocol(
            router, config=settings, server_state=ServerState(), app_state={},
            _loop=asyncio.get_running_loop(),
        )  # fmt: skip
        wire = Wire()
        client.connection_made(wire)
        try:
            await play(client, wire)
        finally:
            router.close()
        return wire.done

    return asyncio.run(run())


def test_an_answer_leaves_when_the_turn_is_over() -> None:
    async def play(client: RouterProtocol, wire: Wire) -> None:
        client.router.outbox.to_client(wire, ANSWER)
        assert wire.done == []
        await asyncio.sleep(0)
        assert wire.done == [ANSWER]
        await asyncio.sleep(0)

    assert played(play) == [ANSWER]


def test_engines_hear_before_clients() -> None:
    async def play(client: RouterProtocol, wire: Wire) -> None:
        outbox = client.router.outbox
        outbox.to_client(wire, b"answer 1")
        outbox.to_engine(wire, b"request 1")
        outbox.to_client(wire, b"answer 2")
        outbox.to_engine(wire, b"request 2")
        await asyncio.sleep(0)
        outbox.to_client(wire, b"the next turn")
        await asyncio.sleep(0)

    assert b", ".join(map(bytes, played(play))) == (  # type: ignore[arg-type]
        b"request 1, request 2, answer 1, answer 2, the next turn"
    )


def test_what_is_large_does_not_wait() -> None:
    """One read may follow the other within a turn, and whoever does not read has to be noticed."""
    large = b"x" * 65536

    async def play(client: RouterProtocol, wire: Wire) -> None:
        client.router.outbox.to_client(wire, ANSWER)
        client.router.outbox.to_client(wire, large)
        assert wire.done == [ANSWER, large]
        await asyncio.sleep(0)

    assert played(play) == [ANSWER, large]


def test_one_that_cannot_be_written_to_costs_the_others_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = Wire()

    def fail() -> None:
        raise RuntimeError("the handler is closed")

    async def play(client: RouterProtocol, wire: Wire) -> None:
        broken.full = fail
        client.router.outbox.to_client(broken, ANSWER)
        client.router.outbox.to_client(wire, ANSWER)
        await asyncio.sleep(0)

    assert played(play) == [ANSWER]
    assert broken.done == [ANSWER, "abort"]
    assert "the handler is closed" in caplog.text


def test_what_is_said_to_the_next_request_comes_after_it() -> None:
    async def play(client: RouterProtocol, wire: Wire) -> None:
        client.router.outbox.to_client(wire, ANSWER)
        client.data_received(b"this is not HTTP\r\n\r\n")
        await asyncio.sleep(0)

    answer, error, end = played(play)
    assert answer == ANSWER
    assert isinstance(error, bytes)
    assert error.startswith(b"HTTP/1.1 400 ")
    assert end == "close"


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_server_that_ends_sends_it(moment: str) -> None:
    async def play(client: RouterProtocol, wire: Wire) -> None:
        client.router.outbox.to_client(wire, ANSWER)
        if moment == "after":
            await asyncio.sleep(0)
        client.shutdown()
        await asyncio.sleep(0)

    assert played(play) == [ANSWER, "close"]


def test_a_client_that_does_not_read_it_is_not_read_either() -> None:
    async def play(client: RouterProtocol, wire: Wire) -> None:
        wire.full = client.pause_writing
        client.router.outbox.to_client(wire, ANSWER)
        await asyncio.sleep(0)

    assert played(play) == [ANSWER, "pause reading"]


@pytest.mark.parametrize("lost", [True, False])
def test_nothing_is_written_to_a_client_that_is_gone(lost: bool) -> None:
    async def play(client: RouterProtocol, wire: Wire) -> None:
        client.router.outbox.to_client(wire, ANSWER)
        wire.close()
        if lost:
            client.connection_lost(None)
        await asyncio.sleep(0)

    assert ANSWER not in played(play)
