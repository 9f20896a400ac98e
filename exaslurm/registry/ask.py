"""Short questions to engines and controllers: a few GETs over one connection, as cheaply as
asyncio can.

A client library costs several times the CPU of the question itself, and a router over thousands of
engines asks a hundred questions a second for as long as it lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Coroutine
from typing import Any

import httptools

# vLLM's /metrics is 50 KiB; an engine that sends without end shall not fill our memory.
MAX_ANSWER_BYTES = 4 * 1024 * 1024


# Our own shortage says nothing about whom we wanted to ask.
_OURS = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.EAGAIN)
)


class NoAnswer(Exception):
    """There was no (whole) answer. ``late``: not in time, or no address for the name; who was
    asked may only be slow. ``ours``: we could not even ask."""

    def __init__(self, reason: str, *, late: bool = False, ours: bool = False) -> None:
        super().__init__(reason)
        self.late = late
        self.ours = ours


class Dialogue(asyncio.Protocol):
    """One connection, and what is asked over it, one thing after the other.

    ``url`` is ``http://host:port[/prefix]`` or ``unix:/path`` (else ValueError), ``key`` what is
    to be shown, ``timeout_s`` the time for the whole dialogue.
    """

    def __init__(self, url: str, key: str | None, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._unix = url.removeprefix("unix:") if url.startswith("unix:") else None
        auth = "" if key is None else f"Authorization: Bearer {key}\r\n"
        rest = "localhost:0" if self._unix else url.removeprefix("http://")
        host, slash, prefix = rest.partition("/")
        self._prefix = (slash + prefix).rstrip("/").encode()
        name, _, port = host.rpartition(":")
        self._host, self._port = name.strip("[]"), int(port)
        self._tail = f" HTTP/1.1\r\nHost: {host}\r\n{auth}Accept: */*\r\n\r\n".encode()
        self._timeout_s = timeout_s
        self._timer = self._loop.call_later(timeout_s, self._time_is_up)
        self._late = False
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[tuple[int, bytes]] | None = None
        self._connecting: asyncio.Task[Any] | None = None
        self._parser: Any = None
        self._parts: list[bytes] = []
        self._size = 0

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of the answer; NoAnswer if there is none."""
        if self._late:
            raise self._too_late()
        if self._transport is None:
            await self._connect()
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._parts, self._size = [], 0
        self._waiter = self._loop.create_future()
        self._transport.write(b"GET " + self._prefix + path.encode() + self._tail)
        try:
            return await self._waiter
        finally:
            self._waiter = None

    def close(self) -> None:
        """End the connection, whatever is under way."""
        self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    async def _connect(self) -> None:
        opening: Coroutine[Any, Any, Any]
        if self._unix is not None:
            opening = self._loop.create_unix_connection(lambda: self, self._unix)
        else:
            opening = self._loop.create_connection(lambda: self, self._host, self._port)
        self._connecting = connecting = self._loop.create_task(opening)
        try:
            await connecting
        except asyncio.CancelledError:
            if self._late:  # ended by our own timer
                raise self._too_late() from None
            connecting.cancel()
            raise
        except socket.gaierror as error:
            raise NoAnswer(error.strerror or str(error), late=True) from None
        except OSError as error:
            raise NoAnswer(_words(error), ours=error.errno in _OURS) from None
        except (ValueError, OverflowError) as error:  # no host's name, or no port's number
            raise NoAnswer(str(error)) from None
        finally:
            self._connecting = None

    def _time_is_up(self) -> None:
        self._late = True
        if self._connecting is not None:
            self._connecting.cancel()
        self._fail(self._too_late())
        self.close()

    def _too_late(self) -> NoAnswer:
        return NoAnswer(f"no answer in {self._timeout_s:g} s", late=True)

    def _fail(self, error: NoAnswer) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    # What the transport calls.

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(NoAnswer(f"its answer is not HTTP: {error}"))
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        # Whoever waits has an answer already, unless it was to last until the connection's end;
        # that is not what an engine sends.
        said = _words(error) if isinstance(error, OSError) else "it closed the connection"
        self._fail(NoAnswer(said))

    # What the parser calls.

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > MAX_ANSWER_BYTES:
            self._fail(NoAnswer(f"its answer is longer than {MAX_ANSWER_BYTES >> 20} MiB"))
            self.close()
        else:
            self._parts.append(data)

    def on_message_complete(self) -> None:
        parser, self._parser = self._parser, None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result((parser.get_status_code(), b"".join(self._parts)))
        if not parser.should_keep_alive() and self._transport is not None:
            self._transport.close()
            self._transport = None


def _words(error: OSError) -> str:
    with contextlib.suppress(TypeError, ValueError):
        if error.errno:
            return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__
