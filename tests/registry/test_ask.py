"""Questions over one connection, and every way in which an answer can fail to come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from exaslurm.registry import ask
from exaslurm.registry.ask import Dialogue, NoAnswer

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
CLOSING = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\n\r\n"


class Server:
    """Answers each question with the same bytes, byte for byte if ``slowly``."""

    def __init__(self) -> None:
        self.answer = OK
        self.slowly = False
        self.hang_up = False
        self.connections = 0
        self.questions: list[bytes] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while not reader.at_eof():
                self.questions.append(await reader.readuntil(b"\r\n\r\n"))
                pieces = [self.answer]
                if self.slowly:
                    pieces = [self.answer[i : i + 1] for i in range(len(self.answer))]
                for piece in pieces:
                    writer.write(piece)
                    await asyncio.sleep(0)
                await writer.drain()
                if self.hang_up:
                    break
        writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    yield server
    listening.close()


@contextlib.contextmanager
def talking(server: Server, key: str | None = None, timeout_s: float = 5.0) -> Any:
    dialogue = Dialogue(server.url, key, timeout_s)
    try:
        yield dialogue
    finally:
        dialogue.close()


@pytest.mark.parametrize("slowly", [False, True])
@pytest.mark.parametrize(("answer", "connections"), [(OK, 1), (CHUNKED, 1), (CLOSING, 2)])
async def test_two_questions(server: Server, answer: bytes, connections: int, slowly: bool) -> None:
    server.answer, server.slowly = answer, slowly
    server.hang_up = answer is CLOSING
    with talking(server, "inner") as dialogue:
        assert await dialogue.get("/health") == (200, b"hi")
        assert await dialogue.get("/metrics") == (200, b"hi")
    assert server.connections == connections
    first, second = server.questions
    assert first.startswith(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nAuthorization: Bearer inner\r\n" in first
    assert second.startswith(b"GET /metrics ")


async def test_a_prefix_and_no_key(server: Server) -> None:
    server.url += "/cell/0/"
    with talking(server) as dialogue:
        await dialogue.get("/health")
    assert server.questions[0].startswith(b"GET /cell/0/health ")
    assert b"uthorization" not in server.questions[0]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "closed the connection"),
        (CHUNKED[:-5], "closed the connection"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not HTTP"),
        (b"\x16\x03\x01\x02\x00", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "not HTTP"),
    ],
)
async def test_half_an_answer(server: Server, answer: bytes, says: str) -> None:
    server.answer, server.hang_up = answer, True
    with talking(server) as dialogue, pytest.raises(NoAnswer, match=says) as caught:
        await dialogue.get("/health")
    assert not caught.value.late


async def test_more_than_was_asked_for(server: Server) -> None:
    server.answer = OK + OK
    with talking(server) as dialogue:
        assert (await dialogue.get("/health"))[0] == 200
        # The connection is of no use any more; another one is.
        with contextlib.suppress(NoAnswer):
            assert (await dialogue.get("/metrics"))[0] == 200


async def test_too_much(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "MAX_ANSWER_BYTES", 1)
    with talking(server) as dialogue, pytest.raises(NoAnswer, match="longer than"):
        await dialogue.get("/metrics")


async def test_no_answer_in_time(server: Server) -> None:
    server.answer = b""
    with talking(server, timeout_s=0.1) as dialogue:
        for _ in range(2):  # the time is that of the whole dialogue
            with pytest.raises(NoAnswer, match=r"no answer in 0\.1 s") as caught:
                await dialogue.get("/health")
            assert caught.value.late


async def test_a_host_that_does_not_answer_at_all() -> None:
    # A documentation network (RFC 5737): no route, or silence.
    dialogue = Dialogue("http://192.0.2.1:9", None, 0.1)
    with pytest.raises(NoAnswer):
        await dialogue.get("/health")
    dialogue.close()


async def test_nobody_listens(unused_tcp_port: int) -> None:
    dialogue = Dialogue(f"http://127.0.0.1:{unused_tcp_port}", None, 1.0)
    with pytest.raises(NoAnswer, match="refused") as caught:
        await dialogue.get("/health")
    assert not caught.value.late
    assert not caught.value.ours
    dialogue.close()


async def test_it_can_be_cancelled_at_any_point(server: Server) -> None:
    server.answer = b""
    for turns in range(12):
        with talking(server) as dialogue:
            task = asyncio.create_task(dialogue.get("/health"))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


@pytest.mark.parametrize("url", ["http://host", "http://host:x", "ftp"])
async def test_addresses_without_a_port(url: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        Dialogue(url, None, 1.0)
