"""What the head of a request, or of an answer, says; and a memory of heads that come again.

A client sends the same head with every request, but for the length of the body, and so does an
engine with its answers for as long as their date is the same. What a parser once found out about
such a head holds for the next one. The heads in memory hold clients' keys, as requests do; it is
small.
"""

from __future__ import annotations

from typing import Final, Generic, Protocol, TypeVar

from exaslurm.keys.clients import KeyInfo
from exaslurm.router.forms import is_form
from exaslurm.router.headers import (
    Headers,
    fields_to_client,
    fields_to_engine,
    has_been_here,
    usable_request_id,
)
from exaslurm.router.routes import TAKE_FORMS

_CAPACITY: Final = 512
_MAX_HEAD_BYTES: Final = 2048
# A length of more digits is not of a body that comes with its head.
_MAX_DIGITS: Final = 7
_LENGTH: Final = b"ength: "  # however the name is written
_LENGTH_NAME: Final = b"\r\ncontent-length: "
_END: Final = b"\r\n\r\n"


class RequestHead:
    """The head of a request for an engine.

    ``headers``, ``fields``: names in lower case; ``form``: the body's type, if it is a form;
    ``fault``: why one cannot tell what the head means, empty if one can; ``chunks``: the client
    reads them (HTTP/1.1); ``ident``: its ``X-Request-Id``, if it may be passed on; ``forwarded``:
    the fields for the engine; ``is_from_page``: a page in a browser sent it; ``is_back``: this
    process has sent it.
    ``key``: whose it is, as of the state of the keys that ``key_as_of`` stands for.
    """

    __slots__ = (
        "chunks",
        "fault",
        "fields",
        "form",
        "forwarded",
        "headers",
        "ident",
        "is_back",
        "is_from_page",
        "keep_alive",
        "key",
        "key_as_of",
        "route",
        "url",
    )

    def __init__(
        self, route: str, url: bytes, headers: Headers, *, keep_alive: bool, chunks: bool
    ) -> None:
        self.route = route
        self.url = url
        self.headers = headers
        self.fields = fields = dict(headers)
        kind = fields.get(b"content-type", b"")
        self.form = kind if route in TAKE_FORMS and is_form(kind) else b""
        # Which one holds, an engine may see otherwise, and so find another model in the body.
        twice = len(fields) < len(headers) and sum(n == b"content-type" for n, _ in headers) > 1
        self.fault = "the request has a second Content-Type field" if twice else ""
        self.keep_alive = keep_alive
        self.chunks = chunks
        given = fields.get(b"x-request-id")
        self.ident = given if given is not None and usable_request_id(given) else None
        self.forwarded = fields_to_engine(headers)
        self.is_from_page = b"origin" in fields
        self.is_back = b"via" in fields and has_been_here(headers)
        self.key: KeyInfo | None = None
        self.key_as_of: object = None

    def may_come_again(self) -> bool:
        """Whether the head says the length of the body and wishes for nothing special."""
        fields = self.fields
        return (
            self.keep_alive
            and self.chunks
            and b"content-length" in fields
            and b"expect" not in fields
            and b"upgrade" not in fields
        )


class AnswerHead:
    """The head of an engine's answer.

    ``headers``: names in lower case; ``length``: of the body, None: chunked, or until the end of
    the connection; ``coded``: the body is compressed, so that nothing can be read in it;
    ``passed``: status line and fields for the client.
    ValueError if it cannot be.
    """

    __slots__ = (
        "chunked",
        "coded",
        "dated",
        "events",
        "headers",
        "length",
        "passed",
        "status",
    )

    def __init__(self, status: int, headers: Headers) -> None:
        self.status = status
        self.headers = headers
        self.length: int | None = None
        self.chunked = self.coded = self.dated = self.events = False
        for name, value in headers:
            if name == b"content-length":
                self.length = int(value)
            elif name == b"transfer-encoding":
                self.chunked = value[-7:].lower() == b"chunked"  # the last coding is
            elif name == b"date":
                self.dated = True
            elif name == b"content-type":
                self.events = value[:17].lower() == b"text/event-stream"
            elif name == b"content-encoding":
                self.coded = value.lower() != b"identity"
        if self.coded:
            self.events = False
        if status in (204, 304):
            self.length = 0
        self.passed = fields_to_client(status, headers)

    def may_come_again(self) -> bool:
        """Whether the length that the head tells is that of the body."""
        return self.status not in (204, 304)


class _Head(Protocol):
    @property
    def headers(self) -> Headers: ...

    def may_come_again(self) -> bool: ...


H = TypeVar("H", bound=_Head)


class Memory(Generic[H]):
    """Heads that were seen, but for the length that they tell."""

    __slots__ = ("_known", "_recent")

    def __init__(self, known: dict[bytes, H] | None = None) -> None:
        self._known: dict[bytes, H] = {} if known is None else known
        # The head that was found last: what stands before the length, and after it.
        self._recent: tuple[bytes, int, bytes, int, H] | None = None

    def of_one_sender(self) -> Memory[H]:
        """One that knows the same heads, for who mostly sends the same one again and again."""
        return Memory(self._known)

    def find(self, data: bytes) -> tuple[H, bytes] | None:
        """The head and the body of a message, if ``data`` is the whole of it and no more, and its
        head is known. ``data`` begins where a parser would expect a message to begin."""
        recent = self._recent
        if recent is not None:
            before, begin, after, size, head = recent
            if data.startswith(before):
                end = data.find(b"\r", begin, begin + _MAX_DIGITS + 1)
                if data.startswith(after, end):
                    digits = data[begin:end]
                    at = end + size
                    if not digits.isdigit() or int(digits) != len(data) - at:
                        return None
                    return head, data[at:]
        return self._look_up(data)

    def _look_up(self, data: bytes) -> tuple[H, bytes] | None:
        begin = data.find(_LENGTH, 0, _MAX_HEAD_BYTES) + 7
        if begin < 7:
            return None
        end = data.find(b"\r", begin, begin + _MAX_DIGITS + 1)
        at = data.find(_END, end, _MAX_HEAD_BYTES) + 4
        if end < 0 or at < 4:
            return None
        before, after = data[:begin], data[end:at]
        head = self._known.get(before + after)
        if head is None:
            return None
        self._recent = before, begin, after, len(after), head
        digits = data[begin:end]
        if not digits.isdigit() or int(digits) != len(data) - at:
            return None
        return head, data[at:]

    def learn(self, data: bytes, head: H) -> None:
        """``data`` begins with a message that a parser has read the head of, ``head``; it tells
        the length of its body."""
        begin = data.find(_LENGTH, 0, _MAX_HEAD_BYTES) + 7
        end = data.find(b"\r", begin, begin + _MAX_DIGITS + 1)
        at = data.find(_END, end, _MAX_HEAD_BYTES) + 4
        if begin < 7 or end < 0 or at < 4:
            return
        before = data[:begin]
        lines = data[: at - 4]
        if (
            before[-len(_LENGTH_NAME) :].lower() == _LENGTH_NAME
            # Each line is one field: nothing is folded, and the end is where it was looked for.
            and lines.count(b"\r\n") == len(head.headers)
            and lines.count(b"\n") == len(head.headers)
            and head.may_come_again()
        ):
            if len(self._known) >= _CAPACITY:
                self._known.clear()
            self._known[before + data[end:at]] = head
