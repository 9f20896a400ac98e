"""Connections to the engines: a pool for each, HTTP/1.1, bytes as they are.

There is no time limit on a living connection here, for an answer may take long; a host that is
gone is noticed by the kernel (unacknowledged data, or keepalive while waiting). Idle connections
are dropped before the engine would drop them: uvicorn's keep-alive is 5 s, and a request that meets
a closing connection is lost.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol, cast
from urllib.parse import urlsplit

import httptools

from exaslurm.router.headers import VIA, Headers
from exaslurm.router.heads import AnswerHead, Memory
from exaslurm.router.outbox import Outbox

if TYPE_CHECKING:
    from exaslurm.router.config import RouterConfig

# A body beyond this may wait for an engine that does not read for a while; the time limit for
# unacknowledged data, which counts a closed window too, must not cut it off.
_PATIENT_BYTES: Final = 64 * 1024
_PATIENT_MS: Final = 60_000
_MAX_HEAD_BYTES: Final = 256 * 1024
_POST: Final = b"POST "
_ZERO: Final = ord("0")
# How a chunk begins that is so many bytes long, all in all: most are short.
_SHORT_BYTES: Final = 2048
_SIZE_LINES: Final = [b"\0"] * _SHORT_BYTES  # which no chunk begins with
_NO_PIECES: Final[list[bytes]] = []  # in place of those that were passed on; never appended to
for _size in range(1, _SHORT_BYTES):
    _line = b"%x\r\n" % _size
    if len(_line) + _size + 2 < _SHORT_BYTES:
        _SIZE_LINES[len(_line) + _size + 2] = _line
# Out of descriptors or memory: no other engine would be reached either.
_OUR_ERRORS: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class Loss(Enum):
    """How a connection was lost: it ended; it had been idle, and ended before anything of the
    answer came, so that its end may have been under way already when the request was sent; nobody
    listens there; nobody has answered yet, which may be for want of time; or we could not open
    one, which says nothing of the engine."""

    ENDED = "ended"
    STALE = "stale"
    REFUSED = "refused"
    LATE = "late"
    OURS = "ours"


class Receiver(Protocol):
    """Who sent a request, and is told what comes back."""

    def answered(self, connection: Connection, head: AnswerHead, body: bytes) -> bool:
        """A whole answer has arrived in one read. False: tell it in parts (``received``)."""

    def received(self, connection: Connection, data: bytes) -> None:
        """Something arrived and was parsed; ``data`` is the whole of it as it came."""

    def lost(self, reason: str, loss: Loss) -> None:
        """The connection ended, or never began, before the answer was whole."""


class Request(Protocol):
    """A request under way."""

    def drop(self) -> None:
        """Nobody wants its answer any more: the engine shall stop."""


class Endpoint:
    """The address of one engine, and the idle connections to it.

    ``idle``: the one that was used last, from which the ``colder`` ones follow (no list: among
    thousands of engines, each thing less to look at is one less to fetch from far away).
    ``retired``: nobody will be sent there any more, so that no connection is kept. ``before_url``,
    ``after_url``: how the head of a request to it begins.
    """

    __slots__ = ("after_url", "before_url", "idle", "open", "path", "retired", "where")

    def __init__(self, url: str, key: str | None) -> None:
        """``url``: ``http://HOST:PORT[/PREFIX]`` or ``unix:/PATH``; ``key``: what it asks for."""
        self.idle: Connection | None = None
        self.open = 0
        self.retired = False
        self.path: str | None = None
        self.where = ("", 0)
        prefix, host = "", "localhost"
        if url.startswith("unix:"):
            self.path = url.removeprefix("unix:").removeprefix("//")
        else:
            parts = urlsplit(url)
            if parts.scheme != "http" or parts.hostname is None:
                raise ValueError(f"{url!r} is not an address like http://HOST:PORT")
            self.where = (parts.hostname, parts.port or 80)
            host = parts.netloc.rpartition("@")[2]
            prefix = parts.path.rstrip("/")
        # Mostly the same object for all, and so always at hand.
        self.before_url = f"POST {prefix}".encode() if prefix else _POST
        self.after_url = b" HTTP/1.1\r\nhost: %b\r\nvia: %b\r\n" % (host.encode(), VIA)
        if key is not None:
            self.after_url += b"authorization: Bearer %b\r\n" % key.encode()

    def forget(self, connection: Connection) -> None:
        """It is idle no more."""
        if self.idle is connection:
            self.idle = connection.colder
        else:
            warmer = self.idle
            while warmer is not None and warmer.colder is not connection:
                warmer = warmer.colder
            if warmer is not None:
                warmer.colder = connection.colder
        connection.colder = None


class ShortWay:
    """Takes a chunk of a stream that is short and comes by itself, as nearly all do."""

    __slots__ = ()

    def chunk(self, data: bytes) -> bool:
        """Whether passing it on was all there is to do about it; if not, nothing was done."""
        raise NotImplementedError


class Connection:
    """One connection to an engine. It serves one request at a time, and is idle in between.

    After each read: ``head``, None as long as it is not whole; ``pieces`` (the body's pieces of
    this read, decoded); ``between_chunks``: it ended with a whole chunk; ``done``: the answer is
    whole.

    ``direct``: asked about a read between chunks that is one short chunk, with an event at its end.
    """

    __slots__ = (
        "_begins",
        "_chunk_open",
        "_dead_peer_ms",
        "_head_bytes",
        "_headers",
        "_memory",
        "_outbox",
        "_parser",
        "_patient",
        "_reused",
        "_sock",
        "_turn",
        "between_chunks",
        "colder",
        "direct",
        "done",
        "endpoint",
        "head",
        "idle_since_s",
        "keep",
        "pieces",
        "receiver",
        "transport",
    )

    def __init__(self, endpoint: Endpoint, dead_peer_ms: int, memory: Memory[AnswerHead]) -> None:
        self.endpoint = endpoint
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.receiver: Receiver | None = None
        self.idle_since_s = 0.0
        self.colder: Connection | None = None
        self.head: AnswerHead | None = None
        self.pieces: list[bytes] = []
        self.done = False
        self.keep = False
        self._headers: Headers = []
        self._memory = memory
        self._outbox: Outbox | None = None
        self._turn = 0
        self._parser: Any = httptools.HttpResponseParser(self)
        self._dead_peer_ms = dead_peer_ms
        self._sock: Any = None
        self._patient = False
        self._reused = False
        self._begins = True
        self._chunk_open = False
        self.between_chunks = False
        self.direct: ShortWay | None = None
        self._head_bytes = 0

    # The transport's side.

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.endpoint.open += 1
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            self._sock = sock
            _watch_peer(sock, self._dead_peer_ms)

    def send(self, receiver: Receiver, head: bytes, body: bytes, outbox: Outbox) -> None:
        """Send a request; ``receiver`` gets the answer."""
        self.receiver = receiver
        if len(head) + len(body) <= _PATIENT_BYTES:
            self._outbox, self._turn = outbox, outbox.turn
            outbox.to_engine(self.transport, head + body)
            return
        self._outbox = None
        if self._sock is not None:
            self._patient = True
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _PATIENT_MS)
        self.transport.writelines((head, body))

    def data_received(self, data: bytes) -> None:
        direct = self.direct
        if (
            direct is not None
            and len(data) < _SHORT_BYTES
            and data.startswith(_SIZE_LINES[len(data)])
            and data.endswith(b"\n\n\r\n")
            and direct.chunk(data)
        ):
            return  # as nearly always in a stream
        receiver = self.receiver
        if receiver is None:  # nobody asked: this is no connection to use again
            self.transport.abort()
            return
        begins = self._begins
        if begins:
            outbox = self._outbox
            if outbox is not None and outbox.turn == self._turn:
                # The request has not left yet: this is no answer to it, but more than the one
                # before was said to have.
                self.transport.abort()
                self._end("it sent more than it had announced", Loss.STALE)
                return
            if self._patient:
                self._patient = False
                self._sock.setsockopt(
                    socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self._dead_peer_ms
                )
            known = self._memory.find(data)
            if known is not None:  # as nearly always: the parser would say the same
                self.done = self.keep = True
                head, body = known
                if receiver.answered(self, head, body):
                    return
                self._begins = False
                self.head = head
                self.pieces = [body]
                receiver.received(self, data)
                self.pieces = _NO_PIECES
                return
            self._begins = False
        else:
            if self.between_chunks:
                chunks = whole_chunks(data)
                if chunks is not None:  # so does the usual stream go on
                    self.pieces = chunks
                    receiver.received(self, data)
                    self.pieces = _NO_PIECES
                    return
        self.pieces = []
        read = self._parse(data)
        if read is None:
            return
        if self.head is None:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES:
                self.transport.abort()
                self._end(f"the head of its answer is larger than {_MAX_HEAD_BYTES} bytes")
                return
        elif begins and self.done and self.keep and self.head.length is not None:
            self._memory.learn(data, self.head)
        self.between_chunks = (
            self.head is not None
            and self.head.chunked
            and not self._chunk_open
            and read.endswith(b"\r\n")
        )
        receiver.received(self, read)
        self.pieces = _NO_PIECES

    def _parse(self, data: bytes) -> bytes | None:
        """Have the parser read; what may be passed on as it came, None if that was the end of the
        connection."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not self.done:
                self.transport.abort()
                self._end(f"what it answered is not HTTP: {error}")
                return None
            # The answer is whole, and more came than was asked for: none of that is anybody's.
            self.keep = False
            return b""
        except httptools.HttpParserUpgrade:
            self.transport.abort()
            self._end("it answered with another protocol")
            return None
        return data

    def eof_received(self) -> None:
        return None  # the transport closes itself

    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None:
        self.endpoint.open -= 1
        self._parser = None
        if self.receiver is None:
            self.endpoint.forget(self)
            return
        head = self.head
        until_end = head is not None and head.length is None and not head.chunked
        if until_end and not self.done and exc is None:
            self.done = True  # this answer ends with its connection
            self.keep = False
            self.pieces = []
            self.receiver.received(self, b"")
            return
        loss = Loss.STALE if self._reused and self._begins else Loss.ENDED
        self._end(str(exc) if exc else "it closed the connection", loss)

    def _end(self, reason: str, loss: Loss = Loss.ENDED) -> None:
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.lost(reason, loss)

    # The parser's side.

    def on_message_begin(self) -> None:
        if self.done:
            raise ValueError("a second answer")  # ends the parser's work (see data_received)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head is None:  # else it is a trailer, which says nothing about what it follows
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        status = parser.get_status_code()
        headers, self._headers = self._headers, []
        if status < 200:  # "100 Continue" and the like: the answer is yet to come
            if status < 100:
                raise ValueError("no status of HTTP")
            return
        self.keep = parser.should_keep_alive()
        self.head = AnswerHead(status, headers)

    def on_body(self, piece: bytes) -> None:
        self.pieces.append(piece)

    def on_chunk_header(self) -> None:
        self._chunk_open = True

    def on_chunk_complete(self) -> None:
        self._chunk_open = False

    def on_message_complete(self) -> None:
        self.done = self.head is not None

    # The receiver's side.

    def body(self) -> bytes:
        """The body's bytes of this read."""
        pieces = self.pieces
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def give_back(self, now_s: float) -> None:
        """The answer is whole: idle from now on, or closed."""
        self.receiver = None
        endpoint = self.endpoint
        if not self.keep or endpoint.retired or self.transport.is_closing():
            self.direct = None
            self.transport.close()
            return
        self.done = self.keep = False
        self._reused = True
        if not self._begins:
            self._begins = True
            self.head = self.direct = None
            self.between_chunks = False
            self._head_bytes = 0
        self.idle_since_s = now_s
        self.colder = endpoint.idle
        endpoint.idle = self

    def drop(self) -> None:
        """Nobody wants the rest of the answer: the engine shall stop."""
        self.receiver = self.direct = None
        self.transport.abort()


def whole_chunks(data: bytes) -> list[bytes] | None:
    """What is in the chunks of a body, if ``data`` is whole ones and nothing else; the last one,
    extensions and anything else unusual are the parser's to read (RFC 9112, 7.1)."""
    chunks = []
    at, end = 0, len(data)
    while at < end:
        line = data.find(b"\r\n", at, at + 8)
        size = data[at:line]
        # Such as "0x1f" is a number to Python, and "0" is the end.
        if line < 0 or not size.isalnum() or size[0] == _ZERO:
            return None
        begin = line + 2
        try:
            at = begin + int(size, 16)
        except ValueError:
            return None
        chunks.append(data[begin:at])
        at += 2
        if data[at - 2 : at] != b"\r\n":
            return None
    return chunks


class Upstream:
    """Opens connections and keeps the idle ones. Made inside the event loop."""

    def __init__(self, config: RouterConfig, outbox: Outbox) -> None:
        self._loop = asyncio.get_running_loop()
        self._config = config
        self._outbox = outbox
        self._dead_peer_ms = int(config.dead_peer_s * 1000)
        self._connecting: set[asyncio.Task[None]] = set()
        self.memory: Memory[AnswerHead] = Memory()

    def send(
        self,
        receiver: Receiver,
        endpoint: Endpoint,
        head: bytes,
        body: bytes,
        fresh: bool = False,
    ) -> Request:
        """Send a request by an idle connection or a new one; ``fresh``: by a new one.

        ``receiver`` hears of it at the earliest after this has returned.
        """
        while not fresh and (connection := endpoint.idle) is not None:
            endpoint.idle, connection.colder = connection.colder, None
            if not connection.transport.is_closing():
                connection.send(receiver, head, body, self._outbox)
                return connection
        opening = _Opening(receiver, head, body)
        task = self._loop.create_task(self._open(endpoint, opening))
        # Lighter than asyncio.wait_for, which has a task of its own.
        opening.deadline = self._loop.call_later(self._config.connect_timeout_s, task.cancel)
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return opening

    async def _open(self, endpoint: Endpoint, opening: _Opening) -> None:
        try:
            connection = await self._connect(endpoint)
        except asyncio.CancelledError:
            reason = f"no connection within {self._config.connect_timeout_s:g} s"
            opening.failed(reason, Loss.LATE)
            return
        except (OSError, ValueError) as error:
            ours = isinstance(error, OSError) and error.errno in _OUR_ERRORS
            loss = Loss.OURS if ours else Loss.REFUSED
            opening.failed(str(error) or type(error).__name__, loss)
            return
        finally:
            opening.end_wait()
        if opening.receiver is None:  # nobody waits for it any more: it may serve the next one
            connection.keep = True
            connection.give_back(self._loop.time())
            return
        if connection.transport.is_closing():  # who writes to it now gets an exception
            opening.failed("it closed the connection at once", Loss.REFUSED)
            return
        opening.connection = connection
        connection.send(opening.receiver, opening.head, opening.body, self._outbox)

    async def _connect(self, endpoint: Endpoint) -> Connection:
        def make() -> Any:
            return Connection(endpoint, self._dead_peer_ms, self.memory)

        if endpoint.path is not None:
            _, connection = await self._loop.create_unix_connection(make, endpoint.path)
        else:
            host, port = endpoint.where
            _, connection = await self._loop.create_connection(make, host, port)
        return cast(Connection, connection)

    def close(self, endpoints: Callable[[], list[Endpoint]]) -> None:
        """End everything, at the end of the process."""
        for task in list(self._connecting):
            task.cancel()
        for endpoint in endpoints():
            drop_idle(endpoint, float("inf"))


class _Opening:
    """A request whose connection is being opened."""

    __slots__ = ("body", "connection", "deadline", "head", "receiver")

    def __init__(self, receiver: Receiver, head: bytes, body: bytes) -> None:
        self.receiver: Receiver | None = receiver
        self.head = head
        self.body = body
        self.connection: Connection | None = None
        self.deadline: asyncio.TimerHandle | None = None

    def end_wait(self) -> None:
        """The connection is there, or will not be."""
        if self.deadline is not None:
            self.deadline.cancel()

    def failed(self, reason: str, loss: Loss) -> None:
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.lost(reason, loss)

    def drop(self) -> None:
        self.receiver = None
        if self.connection is not None:
            self.connection.drop()


def drop_idle(endpoint: Endpoint, since_s: float) -> None:
    """Close connections that have been idle since before ``since_s`` (the loop's time)."""
    warmer: Connection | None = None
    connection = endpoint.idle
    while connection is not None and connection.idle_since_s >= since_s:
        warmer, connection = connection, connection.colder
    if warmer is None:
        endpoint.idle = None
    else:
        warmer.colder = None
    while connection is not None:  # and so are all that are colder
        colder, connection.colder = connection.colder, None
        connection.transport.close()
        connection = colder


def _watch_peer(sock: Any, dead_peer_ms: int) -> None:
    """Let the kernel notice a host that is gone, while data is under way and while waiting."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, dead_peer_ms)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, max(1, dead_peer_ms // 1000))
