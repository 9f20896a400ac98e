"""Fake engines, any number of them in one event loop, that do what a test says.

What an engine does with a request is a function of the peer; ``as_asked`` does what the request's
own ``X-Do`` field says, which passes the router: ``X-Do: status=500``, ``events=20 gap=0.02``,
``reset``, ``half`` (of a stream, then reset), ``hold`` (until released), ``size=1000000``.

    python -m tests.tools.farm --engines 3072 --unix DIR     prints a line when it listens
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvloop

from exaslurm.registry.replica import Replica

Behaviour = Callable[["Peer"], None]

TEXT = b'{"id":"x","choices":[{"text":"' + b"word " * 200 + b'"}],"usage":{"prompt_tokens":1}}'
EVENT = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"word"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
END = b"0\r\n\r\n"
_MODELS = b'{"object":"list","data":[{"id":"chat","root":"chat","max_model_len":1000000}]}'
_METRICS = (
    b'vllm:num_requests_running{engine="0"} 0.0\nvllm:num_requests_waiting{engine="0"} 0.0\n'
    b'vllm:kv_cache_usage_perc{engine="0"} 0.0\n'
)
_CHECKS = {b"/health": (200, b""), b"/v1/models": (200, _MODELS), b"/metrics": (200, _METRICS)}


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def plain(body: bytes = TEXT, status: int = 200, *fields: bytes) -> bytes:
    more = b"".join(field + b"\r\n" for field in fields)
    return b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n%b" % (
        status,
        more,
        len(body),
        body,
    )


class Peer(asyncio.Protocol):
    """One connection of a router, to the engine of number ``engine``.

    ``head`` and ``body`` are those of the request at hand; ``fields`` its header, in lower case.
    """

    def __init__(self, farm: Farm, engine: int) -> None:
        self.farm = farm
        self.engine = engine
        self.head = self.body = b""
        self.fields: dict[bytes, bytes] = {}
        self.transport: Any = None
        self.busy = False
        self.requests = 0
        self._buffer = bytearray()
        self._resume: Callable[[], None] | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.farm.opened += 1
        self.farm.peers.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.farm.peers.discard(self)
        if self.busy:
            self.busy = False
            self.farm.aborted += 1
            self.farm.running[self.engine] -= 1

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while not self.busy and self._take():
            self._begin()

    def _take(self) -> bool:
        """Whether there is a whole request; it is the one at hand now."""
        buffer = self._buffer
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        lines = bytes(buffer[:end]).split(b"\r\n")
        self.fields = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(b":") for line in lines[1:])
        }
        whole = end + 4 + int(self.fields.get(b"content-length", 0))
        if len(buffer) < whole:
            return False
        self.head, self.body = bytes(buffer[:end]), bytes(buffer[end + 4 : whole])
        del buffer[:whole]
        return True

    def _begin(self) -> None:
        method, path, _ = self.head.split(b" ", 2)
        shown = self.fields.get(b"authorization")
        if self.farm.key is not None and path != b"/health" and shown != b"Bearer " + self.farm.key:
            self.farm.refused += 1
            self.write(plain(b'{"error":"Unauthorized"}', 401))
            return
        if method == b"GET":
            status, body = _CHECKS.get(path, (404, b"{}"))
            self.write(plain(body, status))
            return
        self.busy = True
        self.requests += 1
        self.farm.taken[self.engine] += 1
        self.farm.running[self.engine] += 1
        self.farm.behave(self)

    @property
    def path(self) -> bytes:
        return self.head.split(b" ", 2)[1]

    def write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    def done(self) -> None:
        """The answer is whole."""
        if self.busy:
            self.busy = False
            self.farm.running[self.engine] -= 1

    def answer(self, raw: bytes) -> None:
        """A whole answer."""
        self.done()
        self.write(raw)

    def reset(self) -> None:
        """End the connection as a killed process does whose socket had unread data."""
        self.done()
        sock = self.transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def close(self) -> None:
        """End the connection after what was written."""
        self.done()
        self.transport.close()

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        """Do it later, if the connection is still there and waits for this answer."""
        request = self.requests

        def now() -> None:
            if self.busy and self.requests == request:
                act()

        self.farm.loop.call_later(delay_s, now)

    def events(self, pieces: list[bytes], gap_s: float, *, end: bool = True) -> None:
        """An event stream, a piece each ``gap_s``; what is given is written as it is."""
        rest = iter(pieces)
        self.write(STREAM_HEAD)

        def step() -> None:
            piece = next(rest, None)
            if piece is not None:
                self.write(piece)
                self.later(gap_s, step)
            elif end:
                self.answer(END)
            else:
                self.reset()

        step()

    def flood(self, size: int) -> None:
        """An event stream of so many bytes, as fast as it is read."""
        piece = chunk(b"data: " + b"x" * 65_000 + b"\n\n")
        left = size
        self.write(STREAM_HEAD)
        self.transport.set_write_buffer_limits(high=256 * 1024)

        def more() -> None:
            nonlocal left
            while left > 0 and self._resume is None:
                left -= len(piece)
                self.farm.flooded += len(piece)
                self.write(piece)
                if self.transport.get_write_buffer_size() > 256 * 1024:
                    self._resume = more
            if left <= 0:
                self.answer(chunk(DONE) + END)

        more()

    def resume_writing(self) -> None:
        resume, self._resume = self._resume, None
        if resume is not None:
            resume()


def as_asked(peer: Peer) -> None:
    """What the request's ``X-Do`` field says, else an answer of 1 KB."""
    words = peer.fields.get(b"x-do", b"").decode().split()
    if not words:
        peer.answer(_USUAL)
        return
    how = dict(word.partition("=")[::2] for word in words)
    if "reset" in how:
        peer.reset()
    elif "hold" in how:
        peer.farm.held.append(peer)
    elif "half" in how:
        peer.write(STREAM_HEAD + chunk(EVENT) + b"40\r\nda")
        peer.reset()
    elif "events" in how:
        pieces = [*[chunk(EVENT)] * int(how["events"]), chunk(DONE)]
        gap_s = float(how.get("gap", 0))
        if gap_s:
            peer.events(pieces, gap_s)
        else:
            peer.answer(STREAM_HEAD + b"".join(pieces) + END)
    elif "size" in how:
        peer.flood(int(how["size"]))
    elif "delay" in how:
        peer.later(float(how["delay"]), lambda: peer.answer(_USUAL))
    else:
        peer.answer(plain(b'{"error":{"message":"as asked"}}', int(how["status"])))


_USUAL = plain()


class Farm:
    """``count`` engines of one event loop. ``taken`` and ``running``: requests by engine;
    ``aborted``: connections that ended while an answer was due; ``held``: peers that wait. With a
    ``key``, what comes without it is ``refused``, but for ``/health``, as exaslurm's engines do."""

    def __init__(self, behave: Behaviour = as_asked) -> None:
        self.behave = behave
        self.loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]
        self.urls: list[str] = []
        self.peers: set[Peer] = set()
        self.held: list[Peer] = []
        self.taken: Counter[int] = Counter()
        self.running: Counter[int] = Counter()
        self.key: bytes | None = None
        self.refused = 0
        self.opened = 0
        self.aborted = 0
        self.flooded = 0
        self._servers: list[asyncio.AbstractServer] = []

    async def listen(self, count: int, unix: Path | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        for number in range(count):

            def make(engine: int = number) -> Peer:
                return Peer(self, engine)

            if unix is not None:
                path = unix / f"{number}.sock"
                server = await self.loop.create_unix_server(make, path, backlog=1024)
                self.urls.append(f"unix:{path}")
            else:
                server = await self.loop.create_server(make, "127.0.0.1", 0, backlog=1024)
                port = server.sockets[0].getsockname()[1]
                self.urls.append(f"http://127.0.0.1:{port}")
            self._servers.append(server)

    def release(self, answer: bytes = _USUAL) -> None:
        """Answer those that were held."""
        held, self.held = self.held, []
        for peer in held:
            peer.answer(answer)

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for peer in list(self.peers):
            peer.transport.abort()
        await asyncio.sleep(0)


class FarmThread(Farm):
    """The same in a thread of its own, for tests that do not run in an event loop."""

    def __init__(self, count: int = 1, behave: Behaviour = as_asked) -> None:
        super().__init__(behave)
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engines")
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.listen(count), self._loop).result(30)

    def do(self, act: Callable[[], object]) -> None:
        """Run something in the engines' event loop, and wait for it."""

        async def run() -> None:
            act()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def replicas(self, **changes: Any) -> list[Replica]:
        return [self.replica(number, **changes) for number in range(len(self.urls))]

    def replica(self, number: int, **changes: Any) -> Replica:
        facts: dict[str, Any] = {
            "id": f"c000-r{number:04}",
            "cell": "c000",
            "model": "chat",
            "served_names": ("chat",),
            "url": self.urls[number],
            "node": f"node-{number:04}",
            "ready": True,
            "state": "ready",
        }
        return Replica(**{**facts, **changes})

    def end(self) -> None:
        asyncio.run_coroutine_threadsafe(self.close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@contextlib.contextmanager
def farm_of(count: int = 1, behave: Behaviour = as_asked) -> Iterator[FarmThread]:
    farm = FarmThread(count, behave)
    try:
        yield farm
    finally:
        farm.end()


async def _main(count: int, unix: Path | None) -> None:
    farm = Farm()
    await farm.listen(count, unix)
    print("\n".join(farm.urls), flush=True)
    os.close(1)
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--unix", type=Path)
    given = parser.parse_args()
    uvloop.install()
    asyncio.run(_main(given.engines, given.unix))
