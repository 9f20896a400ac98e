"""The body of an answer on its way to the client, after the first byte.

As a rule a read of the engine's connection is written to the client as it came, the framing of
chunks included. Only where a read does not end between two events, or the client cannot read
chunks, are the events cut out and framed anew, so that a stream can be ended in good form at any
time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from exaslurm.router.events import SEPARATORS, EventStream, cut
from exaslurm.router.upstream import Connection, ShortWay
from exaslurm.router.usage import Usage

Write = Callable[[bytes], None]
END_OF_CHUNKS: Final = b"0\r\n\r\n"


class Events(ShortWay):
    """An event stream."""

    __slots__ = ("_as_it_came", "_chunks", "_held", "_write", "stream")

    def __init__(self, stream: EventStream, write: Write, *, chunks: bool) -> None:
        """``chunks``: the client reads chunks; else the stream ends with its connection."""
        self.stream = stream
        self._write = write
        self._chunks = chunks
        self._held = b""
        self._as_it_came = False

    def begin(self, head: bytes, first: bytes, connection: Connection) -> None:
        """The head of the answer, and what has arrived of its body (decoded)."""
        self._write(head + self._framed(self._next(first, connection.done), connection.done))
        self._aligned(connection)

    @property
    def healthy(self) -> bool:
        """Whether nothing in it speaks against its engine."""
        return self.stream.whole and not self.stream.error

    def feed(self, connection: Connection, data: bytes) -> None:
        """Pass on what was read (see ``Connection``), with ``connection.done`` to the end."""
        pieces = connection.pieces
        text = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if self._as_it_came:
            if text.endswith(SEPARATORS):
                # The usual case by far.
                if connection.between_chunks:
                    self.stream.passed(text)
                    if not connection.done or (self.stream.whole and data.endswith(END_OF_CHUNKS)):
                        self._write(data)
                        return
                    self._write(self._framed(text + self._missing_end(), True))
                    return
            elif not text and connection.done and data == END_OF_CHUNKS and self.stream.whole:
                self._write(data)
                return
        passed = self._next(text, connection.done)
        if passed or connection.done:
            self._write(self._framed(passed, connection.done))
        self._aligned(connection)

    def chunk(self, data: bytes) -> bool:
        """Pass on a chunk in which there is nothing to be seen."""
        # Faster than "in", which first takes the words for a number, and has that fail.
        find = data.find
        if find(b"error") >= 0 or find(b"[DONE]") >= 0 or find(b'"usage"') >= 0:
            return False
        write = self._write
        write(data)
        return True

    def broken(self, message: str) -> bool:
        """The rest is lost: end in good form. False if only a cut connection tells it."""
        self._held = b""
        self._write(self._framed(self.stream.broken(message), True))
        return True

    def _missing_end(self) -> bytes:
        if self.stream.whole:
            return b""
        return self.stream.broken("the answer was lost: its engine ended before it was whole")

    def _next(self, text: bytes, last: bool) -> bytes:
        """The whole events there are now; at the end the rest, too, and what is missing."""
        data = self._held + text if self._held else text
        end = len(data) if last else cut(data)
        passed, self._held = data[:end], data[end:]
        if passed:
            self.stream.passed(passed)
        return passed + self._missing_end() if last else passed

    def _framed(self, events: bytes, last: bool) -> bytes:
        if not self._chunks:
            return events
        chunk = b"%x\r\n%b\r\n" % (len(events), events) if events else b""
        return chunk + END_OF_CHUNKS if last else chunk

    def _aligned(self, connection: Connection) -> None:
        """Whether the next read can pass as it comes."""
        self._as_it_came = self._chunks and connection.between_chunks and not self._held
        alone = self._as_it_came and not self.stream.inside_event
        connection.direct = self if alone else None


class Body:
    """Any other body that is too long to wait for. ``usage``: what it took, as told in it."""

    __slots__ = ("_chunks", "_write", "healthy", "usage")

    def __init__(self, write: Write, *, chunks: bool, healthy: bool) -> None:
        """``chunks``: the head says that chunks follow; else it says the length, or nothing."""
        self._write = write
        self._chunks = chunks
        self.healthy = healthy
        self.usage = Usage()

    def begin(self, head: bytes, first: bytes, connection: Connection) -> None:
        """The head of the answer, and what has arrived of its body (decoded)."""
        self.usage.passed(first, cut=True)
        framed = self._framed(first, connection.done)
        self._write(head + framed)

    def feed(self, connection: Connection, _data: bytes) -> None:
        """Pass on what was read."""
        text = connection.body()
        self.usage.passed(text, cut=True)
        framed = self._framed(text, connection.done)
        if framed:
            self._write(framed)

    def broken(self, _message: str) -> bool:
        """A short body is told by its cut connection alone."""
        return False

    def _framed(self, text: bytes, last: bool) -> bytes:
        if not self._chunks:
            return text
        chunk = b"%x\r\n%b\r\n" % (len(text), text) if text else b""
        return chunk + END_OF_CHUNKS if last else chunk
