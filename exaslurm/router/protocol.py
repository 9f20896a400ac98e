"""How the router's server reads HTTP: uvicorn's way, but for the proxied routes, which go no
further than here: no scope, no task and no ASGI message for a request that is only passed on.

There are limits on what comes before a request has shown a key, and errors are in OpenAI's form.

A request that asks for another protocol is answered in this one. Java's HTTP client asks for
HTTP/2 (``Upgrade: h2c``) with every request on a plain connection; the parser then skips the body
(https://github.com/MagicStack/httptools calls everything after the head "upgraded"), and the
client would be told that it sent none. RFC 9110, 7.8: a server may ignore the field.
"""

from __future__ import annotations

import asyncio
import functools
import http
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote_to_bytes

import httptools
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from exaslurm.router.errors import RequestError, error_body
from exaslurm.router.exchange import MAX_WASTED_BYTES, Exchange
from exaslurm.router.headers import new_request_id
from exaslurm.router.heads import RequestHead
from exaslurm.router.router import Router
from exaslurm.router.routes import BY_PATH

# Long prompts are in the body. A million bytes of header fields are no request of a client's.
MAX_HEAD_BYTES = 1024 * 1024
# A field takes more than a hundred bytes here, however short it is.
MAX_FIELDS = 1000
HEAD_TIMEOUT_S = 60.0
# How long a client whose body is refused may go on sending, so that it can read why; and how long
# one is waited for that shall not ask here again.
LINGER_S = 5.0

# So many requests of a connection are read before their turn, and no large bodies.
_MOST_WAITING = 8
# From here on a body is large: so many digits has its length.
_LARGE_DIGITS = 5

_UPGRADE_FIELDS = frozenset((b"http2-settings", b"upgrade"))
_GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"
_NO_SCOPE: dict[str, Any] = {}


def protocol_factory(app: Starlette) -> Callable[..., asyncio.Protocol]:
    """What makes the connections of an application of ``build_app``, for ``uvicorn.Config``."""
    return functools.partial(RouterProtocol, app.state.router)


class RouterProtocol(HttpToolsProtocol):
    """One connection of a client."""

    def __init__(self, router: Router, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.router = router
        self._heads = router.heads.of_one_sender()
        self.headers = []
        self.paused = False
        self._owes_next = False
        self._current: Exchange | None = None
        self._page: Any = None
        self._in_head = True
        self._head_bytes = 0
        self._waits_since_s = router.now_s
        self._wasted = 0
        self._trailer_bytes = 0
        self._length = b""
        self._head: RequestHead | None = None
        self._begun = 0
        self._between = True
        self._announced = 0
        self._left = 0
        self._refused = False
        self._ends = False
        self._has_asked = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.router.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.router.connections.discard(self)
        cycle = self.cycle
        if isinstance(cycle, Exchange):
            self.connections.discard(self)
            self.flow.resume_writing()
            self.parser = None  # type: ignore[assignment]
            cycle.client_left()
        else:
            super().connection_lost(exc)
        if self._current is not None:
            self._current.client_left()
        page = self._page
        if page is not None and not page.response_complete:
            # uvicorn tells the last request only, and this one would go on to write.
            page.disconnected = True
            page.message_event.set()
        for waiting, _ in self.pipeline:
            if isinstance(waiting, Exchange):
                waiting.client_left()
        self.pipeline.clear()
        # No circles for the garbage collector to find: heads and bodies can be large.
        self.cycle = None  # type: ignore[assignment]
        self._current = self._page = None
        self.headers = []

    def data_received(self, data: bytes) -> None:
        begins = self._between and self._current is None
        if begins:
            known = self._heads.find(data)
            if known is not None and self._takes_another():  # the parser would say the same
                self._has_asked = True
                exchange = self._current = Exchange(self.router, self, known[0])
                self.cycle = exchange  # type: ignore[assignment]
                exchange.whole(known[1])
                return
            self._head = None
            self._begun = 0
        try:
            if self._left:
                data = self._take(data)
                if not data:
                    return
            self._feed(data)
            if self._announced:
                self._take_over()
            if begins and self._begun == 1 and self._head is not None:
                self.router.heads.learn(data, self._head)
        except httptools.HttpParserError as error:
            # Who is not a client yet must not be able to fill the log.
            self.logger.debug("not HTTP: %s", error)
            if not self._has_too_many_fields():
                self._refuse(400, "this is not a valid HTTP request")
            return
        if self._in_head and not self._has_too_many_fields():
            if not self._head_bytes:
                self._waits_since_s = self.router.now_s  # however long it was idle before
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431, f"the head of the request is larger than {MAX_HEAD_BYTES} bytes")
        elif not self._between:
            self._trailer_bytes += len(data)
            if self._trailer_bytes > MAX_HEAD_BYTES:
                self._refuse(431, f"its trailer fields are larger than {MAX_HEAD_BYTES} bytes")

    def _takes_another(self) -> bool:
        """Whether a request that arrives now would be answered at once."""
        cycle: Any = self.cycle
        return not (
            (cycle is not None and not cycle.response_complete)
            or self.paused
            or self.pipeline
            or self._left
            or self._ends
            or self._refused
            or self.transport.is_closing()
        )

    def _has_too_many_fields(self) -> bool:
        """Whether the request was refused for that."""
        if len(self.headers) <= MAX_FIELDS:
            return False
        self.headers = []
        self._refuse(431, f"the request has more than {MAX_FIELDS} header fields")
        return True

    # The parser's side.

    def on_message_begin(self) -> None:
        self._begun += 1
        self._between = False
        self._in_head = True
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._length = b""
        self._announced = 0
        self._trailer_bytes = 0
        self.scope = _NO_SCOPE  # type: ignore[assignment]

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else it is a trailer, of which nobody knows anything
            name = name.lower()
            if name == b"content-length":
                # Its size is known to be small, but not how many zeros it begins with.
                self._length = value.lstrip(b"0") or b"0"
            elif name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if len(self.headers) > MAX_FIELDS:
            raise ValueError("too many fields")  # ends the parser's work (see data_received)
        self._in_head = False
        self._has_asked = True
        self._head_bytes = 0
        parser = self.parser
        if parser.should_upgrade():
            return  # refused, or read again without its wish (see _feed)
        url = self.url
        route = BY_PATH.get(url)
        if route is None and b"?" in url:
            route = BY_PATH.get(url[: url.index(b"?")])
        if parser.get_method() != b"POST":
            self._begin_page()
            return
        if route is None:
            path, query = _plain(url)
            route = BY_PATH.get(path)
            if route is None:
                self._begin_page()
                return
            url = path + query
        is_old = parser.get_http_version() == "1.0"
        head = RequestHead(
            route,
            url,
            self.headers,
            # An old client that asks for it would have to be told in words that it is granted, or
            # it waits for the end of the connection. As uvicorn does.
            keep_alive=parser.should_keep_alive() and not is_old and not self._ends,
            chunks=not is_old,
        )
        free = self._is_free()
        exchange = Exchange(self.router, self, head)
        self.cycle = exchange  # type: ignore[assignment]
        if free:
            self._current = exchange
        else:
            self.pipeline.appendleft((exchange, None))  # type: ignore[arg-type]
        exchange.announce(self._length)
        if exchange.refusal is None and head.may_come_again():
            self._head = head
        if len(self._length) >= _LARGE_DIGITS and self._length.isdigit():
            self._announced = int(self._length)
        if free:
            if self.expect_100_continue:
                if exchange.refusal is None:
                    self.router.outbox.to_client(self.transport, _GO_ON)
                else:  # the client waits with its body until it hears something
                    exchange.start()
            elif exchange.refusal is not None and self._announced > MAX_WASTED_BYTES:
                exchange.start()  # most of its body will not be read, whatever it is
        else:
            exchange.waits_to_go_on = self.expect_100_continue
            # Read on for a while: that the client has gone shows at the end of what it sent.
            if len(self.pipeline) >= _MOST_WAITING:
                self.flow.pause_reading()

    def on_body(self, body: bytes) -> None:
        self._trailer_bytes = 0
        cycle = self.cycle
        if not isinstance(cycle, Exchange):
            if not self._is_leaving():
                super().on_body(body)
            return
        if cycle.response_complete:
            self._waste(len(body))
            return
        cycle.part(body)
        if cycle is not self._current:
            if cycle.bytes_in > MAX_WASTED_BYTES:
                self.flow.pause_reading()
            return
        if cycle.refusal is None:
            return
        if cycle.bytes_in > MAX_WASTED_BYTES:
            cycle.start()

    def on_message_complete(self) -> None:
        self._between = True
        cycle = self.cycle
        if not isinstance(cycle, Exchange):
            if not self._is_leaving():
                super().on_message_complete()
            return
        if self._is_leaving():
            return
        cycle.request_complete = True
        if cycle.response_complete:
            if self._refused:
                self._close()
        elif cycle is self._current:
            cycle.start()

    # The exchange's side.

    def over(self, exchange: Exchange) -> None:
        """The answer to the request at hand is complete."""
        self._current = None
        if exchange.keep_alive:
            self.server_state.total_requests += 1
            self._waits_since_s = self.router.now_s
            if self.pipeline or self.paused or self.flow.read_paused:
                self._go_on()
        else:
            self._waits_since_s = self.router.now_s
            if exchange.request_complete:
                self._close()
            else:
                self._refused = True

    def attends(self, exchange: Exchange) -> bool:
        """Whether it is the turn of this request: an answer before it would be another one's."""
        return exchange is self._current

    def cut(self) -> None:
        """End the connection in the middle of an answer, so that the client sees it is short."""
        self.router.outbox.flush()
        self.transport.abort()

    def _close(self) -> None:
        """End the connection after what was written."""
        self.router.outbox.flush()
        self.transport.close()

    def on_response_complete(self) -> None:
        """A page has been answered."""
        self.server_state.total_requests += 1
        self._waits_since_s = self.router.now_s
        self._go_on()

    def _go_on(self) -> None:
        """The next request that has arrived already, or wait for one."""
        if self.transport.is_closing():
            return
        if self.paused:
            # What it asks for next would pile up behind what it does not read.
            self._owes_next = True
            self.flow.pause_reading()
            return
        if not self.pipeline:
            if self.flow.read_paused:
                self.flow.resume_reading()
            return
        cycle, app = self.pipeline.pop()
        if not self.pipeline:
            self.flow.resume_reading()
        if not isinstance(cycle, Exchange):
            self._start_asgi_task(cycle, app)
            return
        self._current = cycle
        cycle.moved_s = self.router.now_s
        if cycle.request_complete or cycle.refusal is not None:
            # From a fresh stack: thousands of small requests may have come in one packet.
            self.loop.call_soon(self._start_waiting, cycle)
        elif cycle.waits_to_go_on:
            self.router.outbox.to_client(self.transport, _GO_ON)

    def _start_waiting(self, exchange: Exchange) -> None:
        if not exchange.response_complete and not self.transport.is_closing():
            exchange.start()

    # The transport's and the server's side.

    def pause_writing(self) -> None:
        self.paused = True
        super().pause_writing()
        if self._current is not None:
            self._current.client_reads(False)
        elif self._is_free():
            self._go_on()

    def resume_writing(self) -> None:
        self.paused = False
        super().resume_writing()
        if self._current is not None:
            self._current.client_reads(True)
        elif self._owes_next:
            self._owes_next = False
            self._waits_since_s = self.router.now_s
            self._go_on()

    def shutdown(self) -> None:
        """The server ends: no further request on this connection."""
        if self._is_free():
            self._close()
            return
        self.cycle.keep_alive = False
        self._ends = True

    def leave(self) -> None:
        """Another process serves from now on. The next request on this connection is still
        answered, and told that it is the last one; a client cut off without that word could be
        about to send one. If none comes for a while, the connection is closed."""
        self._ends = True
        if self._current is None:  # however long it was idle before
            self._waits_since_s = self.router.now_s

    def sweep(self, now_s: float) -> None:
        """Time has passed: has this connection anything to say?"""
        waits_s = now_s - self._waits_since_s
        if self._refused:
            if waits_s > LINGER_S + self.router.config.slow_client_timeout_s:
                self.transport.abort()  # it does not read why
            elif waits_s > LINGER_S:
                self._close()
        elif self._current is None and (self._owes_next or self._is_free()):
            if self.paused or self.transport.is_closing():  # it does not read what it has got
                if waits_s > self.router.config.slow_client_timeout_s:
                    self.transport.abort()
            elif self._in_head and self._head_bytes:
                if waits_s > HEAD_TIMEOUT_S:
                    message = f"the head of the request was not whole within {HEAD_TIMEOUT_S:g} s"
                    self._refuse(408, message)
            elif waits_s > self._patience_s():
                self._close()
        elif waits_s > HEAD_TIMEOUT_S and self._is_page_without_body():
            self._close()

    def _is_page_without_body(self) -> bool:
        """Whether a page waits for the rest of its body, some KB at most."""
        page = self._page
        return (
            page is not None
            and page is self.cycle
            and not page.response_complete
            and page.more_body
        )

    def _patience_s(self) -> float:
        """How long the client may take to send a request."""
        if self._ends:
            return LINGER_S
        return float(self.timeout_keep_alive) if self._has_asked else HEAD_TIMEOUT_S

    def _is_free(self) -> bool:
        """Whether no request is under way on this connection."""
        cycle: Any = self.cycle
        return cycle is None or bool(cycle.response_complete)

    def _begin_page(self) -> None:
        """A request that the application answers, not an engine: uvicorn's way."""
        self.scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,  # type: ignore[typeddict-item]
            "root_path": self.root_path,
            "headers": self.headers,
            "state": self.app_state.copy(),
        }
        super().on_headers_complete()
        if self._ends:
            self.cycle.keep_alive = False

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._page = cycle
        self._waits_since_s = self.router.now_s
        super()._start_asgi_task(cycle, app)

    def _is_leaving(self) -> bool:
        """Whether the request at hand asks for another protocol, or to be connected elsewhere."""
        return bool(self.parser.should_upgrade())

    def _feed(self, data: bytes | memoryview) -> None:
        """Have the parser read. Requests that wish for another protocol are read without it."""
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = memoryview(data)
                if self.parser.get_method() == b"CONNECT":
                    self._refuse(405, "CONNECT is not allowed here")
                    return
                # A loop, not a recursion: a packet may hold thousands of such requests.
                data = data[upgrade.args[0] :]
                head = self._head_without_wish()
                self.parser = httptools.HttpRequestParser(self)
                self.parser.feed_data(head)
                if data:
                    continue
            return

    def _take_over(self) -> None:
        """The rest of a large body needs no parser, which would copy every byte of it once more."""
        length, self._announced = self._announced, 0
        cycle = self.cycle
        if (
            isinstance(cycle, Exchange)
            and not cycle.request_complete
            and not cycle.response_complete
            and not self._is_leaving()
        ):
            self._left = length - cycle.bytes_in
            self.parser = httptools.HttpRequestParser(self)

    def _take(self, data: bytes) -> bytes:
        """More of a large body; what follows it."""
        piece, rest = (
            (data, b"")
            if len(data) <= self._left
            else (
                data[: self._left],
                data[self._left :],
            )
        )
        self._left -= len(piece)
        self.on_body(piece)
        if not self._left:
            self.on_message_complete()
        return rest

    def _head_without_wish(self) -> bytes:
        version = self.parser.get_http_version().encode()
        head = [self.parser.get_method(), b" ", self.url, b" HTTP/", version, b"\r\n"]
        for name, value in self.headers:
            if name == b"connection":
                wishes = [wish.strip() for wish in value.split(b",")]
                kept = [wish for wish in wishes if wish.lower() not in _UPGRADE_FIELDS]
                head += [b"connection: ", b", ".join(kept), b"\r\n"]
            elif name not in _UPGRADE_FIELDS:
                head += [name, b": ", value, b"\r\n"]
        return b"".join([*head, b"\r\n"])

    def _waste(self, count: int) -> None:
        """More of a body that is refused already."""
        self._wasted += count
        if self._wasted > self.router.config.max_body_bytes:
            self._close()

    def _refuse(self, status: int, message: str) -> None:
        """Answer without the application, and end the connection."""
        self._in_head = False
        if self.transport.is_closing():
            return
        if self._refused:
            self._close()
            return
        if not self._is_free():
            self._refuse_behind(RequestError(status, message))
            return
        body = error_body(status, message)
        head = (
            f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n"
            "content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n"
            f"x-request-id: {new_request_id().decode()}\r\n"
            "connection: close\r\n\r\n"
        )
        self.router.outbox.to_client(self.transport, head.encode() + body)
        self._close()

    def _refuse_behind(self, error: RequestError) -> None:
        """In the middle of another answer there is no place for an error: who asked before gets the
        answer, then the connection ends."""
        last = self.cycle
        if not isinstance(last, Exchange):
            if last.more_body:
                self._close()
            last.keep_alive = False
        elif last.request_complete:
            last.keep_alive = False
        elif last is self._current:  # its body is at fault
            last.refuse(error)
            self._close()
        else:
            last.refusal = error
        self.flow.pause_reading()


def _plain(url: bytes) -> tuple[bytes, bytes]:
    """Path and query of a target that names the host, too, or has escapes in its path: servers
    have to understand both (RFC 9112, 3.2.2; RFC 3986, 6.2.2.2)."""
    try:
        parts: Any = httptools.parse_url(url)
    except httptools.HttpParserInvalidURLError:
        return url, b""
    path = unquote_to_bytes(parts.path or b"")
    return path, b"" if parts.query is None else b"?" + parts.query
