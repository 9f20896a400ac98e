"""The HTTP client towards the engines. Nothing outside this module knows which one it is.

Connections are pooled per engine and dropped before the engine would drop them. There is no time
limit on a living connection, for an answer may take long; a host that is gone is noticed by the
kernel (unacknowledged data, or keepalive while waiting).
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import socket
from collections.abc import Iterator
from typing import Any

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from exaslurm.router.config import RouterConfig

Headers = list[tuple[bytes, bytes]]

_MAX_HEADER_BYTES = 64 * 1024
_WRITE_AT_ONCE_BYTES = 256 * 1024


class UpstreamError(Exception):
    """The engine gave no (whole) answer."""


class ConnectFailed(UpstreamError):
    """No connection: the engine has not seen the request."""


class ConnectionLost(UpstreamError):
    """The connection ended before the answer did."""


class Answer:
    """An engine's answer, of which the head has arrived. To be closed in the end, always."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Headers = list(response.raw_headers)

    @property
    def content_type(self) -> str:
        return self._response.headers.get("Content-Type", "")

    @property
    def content_length(self) -> int | None:
        """The length that the engine announced; None for a chunked answer."""
        return self._response.content_length

    async def next_chunk(self) -> bytes:
        """What has arrived since; empty at the end. ConnectionLost if the end is missing."""
        with _as_upstream_errors():
            return await self._response.content.readany()

    async def read(self, limit: int) -> bytes:
        """The rest of the body, of which more than ``limit`` bytes are not read."""
        parts: list[bytes] = []
        size = 0
        while size < limit:
            chunk = await self.next_chunk()
            if not chunk:
                break
            parts.append(chunk)
            size += len(chunk)
        return b"".join(parts)

    def close(self) -> None:
        """Give the connection back if the answer is complete, else end it: the engine stops."""
        if self._response.content.at_eof() and self._response.content.exception() is None:
            self._response.release()
        else:
            self._response.close()


class Upstream:
    """The pool of connections to all engines. Made and closed inside the event loop."""

    def __init__(self, config: RouterConfig) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                limit_per_host=0,
                keepalive_timeout=config.idle_s,
                socket_factory=_socket_factory(config.dead_peer_s),
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=config.connect_timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            max_line_size=_MAX_HEADER_BYTES,
            max_field_size=_MAX_HEADER_BYTES,
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        )

    async def send(self, method: str, url: str, headers: Headers, body: bytes | None) -> Answer:
        """Send a request and wait for the head of its answer.

        ConnectFailed: it was not sent; ConnectionLost: it may have been begun. On cancellation
        the connection is closed.
        """
        fields: CIMultiDict[str] = CIMultiDict(
            (_text(name), _text(value)) for name, value in headers
        )
        # As a file it is written piece by piece, at the pace at which the engine reads.
        data = io.BytesIO(body) if body and len(body) > _WRITE_AT_ONCE_BYTES else body
        with _as_upstream_errors():
            response = await self._session.request(
                method, URL(url, encoded=True), headers=fields, data=data, allow_redirects=False
            )
        return Answer(response)

    async def close(self) -> None:
        await self._session.close()


@contextlib.contextmanager
def _as_upstream_errors() -> Iterator[None]:
    """The one place where errors of the client library become ours."""
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError) as error:
        raise ConnectFailed(str(error) or type(error).__name__) from error
    except (
        aiohttp.ClientError,
        OSError,
        asyncio.TimeoutError,
        asyncio.IncompleteReadError,
    ) as error:
        raise ConnectionLost(str(error) or type(error).__name__) from error


def _socket_factory(dead_peer_s: float) -> Any:
    def make(info: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol = info[:3]
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        if family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(dead_peer_s * 1000))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, max(1, int(dead_peer_s)))
        return sock

    return make


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")
