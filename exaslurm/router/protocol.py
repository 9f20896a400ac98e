"""How the router's server reads HTTP: uvicorn's way, with limits on what comes before a request
has shown a key, and with errors in OpenAI's form.

A request that asks for another protocol is answered in this one. Java's HTTP client asks for
HTTP/2 (``Upgrade: h2c``) with every request on a plain connection; the parser then skips the body
(https://github.com/MagicStack/httptools calls everything after the head "upgraded"), and the
client would be told that it sent none. RFC 9110, 7.8: a server may ignore the field.
"""

from __future__ import annotations

import asyncio
import http
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from exaslurm.router.errors import error_body

# Long prompts are in the body. A million bytes of header fields are no request of a client's.
MAX_HEAD_BYTES = 1024 * 1024
HEAD_TIMEOUT_S = 60.0

_UPGRADE_FIELDS = frozenset((b"connection", b"http2-settings", b"upgrade"))


class RouterProtocol(HttpToolsProtocol):
    """One connection of a client."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_head = False
        self._watch_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._stay(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            # Who is not a client yet must not be able to fill the log.
            self.logger.debug("not HTTP: %s", error)
            self._refuse(400, "this is not a valid HTTP request")
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431, f"the head of the request is larger than {MAX_HEAD_BYTES} bytes")
        self._watch_head()

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        if not self._is_leaving():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._is_leaving():
            super().on_message_complete()

    def _is_leaving(self) -> bool:
        """Whether the request at hand asks for another protocol (CONNECT is refused as any other
        method is)."""
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _stay(self, rest: bytes) -> None:
        """Read the request again without its wish for another protocol."""
        head = [self.parser.get_method(), b" ", self.url, b" HTTP/1.1\r\n"]
        for name, value in self.headers:
            if name not in _UPGRADE_FIELDS:
                head += [name, b": ", value, b"\r\n"]
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"".join([*head, b"\r\n", rest]))

    def _watch_head(self) -> None:
        """Give a head that is not whole its time."""
        if self._in_head and self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._head_is_late)
        elif not self._in_head and self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._head_bytes == 0:
            self.transport.close()
        else:
            self._refuse(408, f"the head of the request was not whole within {HEAD_TIMEOUT_S:g} s")

    def _refuse(self, status: int, message: str) -> None:
        """Answer without the application, and end the connection."""
        self._in_head = False
        self._watch_head()
        if self.transport.is_closing():
            return
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and not cycle.response_complete:
            self.transport.close()  # in the middle of another answer there is no place for this
            return
        body = error_body(status, message)
        head = (
            f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n"
            "content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
