"""Many clients of a router in one event loop: raw HTTP/1.1 over kept connections."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")

_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
_END = b"0\r\n\r\n"
SMALL = json.dumps({"model": "chat", "prompt": "x", "max_tokens": 4}).encode()
STREAM = json.dumps({"model": "chat", "prompt": "x", "max_tokens": 4, "stream": True}).encode()


@dataclass(slots=True)
class Answer:
    """What a client saw. ``arrivals``: when each read came (monotonic); ``body`` as it came, chunk
    framing included. ``status`` 0: nothing came; ``whole``: it came to its end."""

    asked_s: float
    status: int = 0
    head: bytes = b""
    body: bytes = b""
    whole: bool = False
    ended_s: float = 0.0
    arrivals: list[float] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return self.status == 200 and self.whole and b'"error"' not in self.body


def request(
    key: str, body: bytes = SMALL, path: str = "/v1/completions", *fields: str, method: str = "POST"
) -> bytes:
    """The bytes of a request."""
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {key}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *fields,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Caller(asyncio.Protocol):
    """One client's connection; it is opened anew when it was lost."""

    def __init__(self, host: str, port: int) -> None:
        self.where = (host, port)
        self.transport: Any = None
        self.answer: Answer | None = None
        self._waiter: asyncio.Future[Answer] | None = None
        self._buffer = bytearray()
        self._needed = -1
        self._begun: asyncio.Event | None = None

    async def ask(self, raw: bytes, *, timeout_s: float = 60.0) -> Answer:
        """Send it and wait for the end of the answer, or of the connection."""
        await self.begin(raw)
        return await self.end(timeout_s=timeout_s)

    async def begin(self, raw: bytes) -> Answer:
        """Send it; the answer fills as it comes."""
        loop = asyncio.get_running_loop()
        self.answer = answer = Answer(time.monotonic())
        if self.transport is None or self.transport.is_closing():
            try:
                await loop.create_connection(lambda: self, *self.where)
            except OSError:
                answer.ended_s = time.monotonic()
                self._waiter = loop.create_future()
                self._waiter.set_result(answer)
                return answer
        self._waiter = loop.create_future()
        self._buffer.clear()
        self._needed = -1
        self.transport.write(raw)
        return answer

    async def end(self, *, timeout_s: float = 60.0) -> Answer:
        assert self._waiter is not None
        return await asyncio.wait_for(self._waiter, timeout_s)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        answer = self.answer
        if answer is None or answer.ended_s:
            return
        answer.arrivals.append(time.monotonic())
        buffer = self._buffer
        buffer += data
        if not answer.status:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            answer.head = bytes(buffer[: end + 4])
            answer.status = int(answer.head.split(b" ", 2)[1])
            found = _LENGTH.search(answer.head)
            self._needed = int(found.group(1)) if found else -1
            del buffer[: end + 4]
        done = len(buffer) >= self._needed if self._needed >= 0 else buffer.endswith(_END)
        if done:
            self._finish(whole=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._finish(whole=False)

    def _finish(self, *, whole: bool) -> None:
        answer, waiter = self.answer, self._waiter
        if answer is None or waiter is None or waiter.done():
            return
        answer.whole = whole
        answer.body = bytes(self._buffer)
        answer.ended_s = time.monotonic()
        waiter.set_result(answer)


async def close_all(callers: Iterable[Caller]) -> None:
    """End their connections, and let the event loop take note of it."""
    for caller in callers:
        caller.close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def each(count: int, act: Callable[[int], Awaitable[T]]) -> list[T]:
    """Do it ``count`` times at once."""
    return list(await asyncio.gather(*(act(number) for number in range(count))))
