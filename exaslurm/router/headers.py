"""Which header fields pass the router, and the heads that it writes. Pure."""

from __future__ import annotations

import http
import itertools
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Final

Headers = list[tuple[bytes, bytes]]

# RFC 9110, 7.6.1: about one connection, not about the message.
_HOP_BY_HOP: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
# What the router sets itself, and the client's key, which never reaches an engine.
_NOT_FORWARDED: Final = _HOP_BY_HOP | {
    b"authorization",
    b"content-length",
    b"expect",
    b"host",
    b"x-api-key",
    b"x-exaslurm-replica",
    b"x-request-id",
}
# The framing is the router's to say, and so is what pages of other origins may do.
_NOT_RETURNED: Final = _HOP_BY_HOP | {
    b"access-control-allow-credentials",
    b"access-control-allow-origin",
    b"access-control-expose-headers",
    b"content-length",
    b"x-exaslurm-replica",
    b"x-request-id",
}
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_PLAIN_CONNECTION: Final = frozenset((b"keep-alive", b"close", b"Keep-Alive", b"Close"))

# Request ids are unique, not secret: a random start and a count cost no system call each.
_ident_start = secrets.token_hex(8)
_ident_count = itertools.count(1)
# How this process names itself to what it sends requests to (RFC 9110, 7.6.3).
VIA: Final = b"1.1 exaslurm-" + _ident_start.encode()


def _status_line(status: int) -> bytes:
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


_STATUS_LINES: Final = {status: _status_line(status) for status in range(100, 1000)}

# For pages of other origins: any of them, without cookies.
ANY_ORIGIN: Final = b"access-control-allow-origin: *\r\n"
# A proxy in front of the router must not collect events.
EVENTS_PASS_AT_ONCE: Final = b"x-accel-buffering: no\r\n"
NO_CACHE: Final = b"cache-control: no-cache\r\n"


def new_request_id() -> bytes:
    """An id that no other request has."""
    return b"%s%08x" % (_ident_start.encode(), next(_ident_count))


def usable_request_id(given: bytes) -> bool:
    """Whether a client's ``X-Request-Id`` is one to pass on and to write into logs."""
    return _REQUEST_ID.fullmatch(given) is not None


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The client's ``X-Request-Id`` if it is a harmless one, else a new one."""
    for name, value in headers:
        if name == b"x-request-id" and usable_request_id(value):
            return value
    return new_request_id()


def has_been_here(headers: Headers) -> bool:
    """Whether this process has sent this request already: it was led back in a circle."""
    return any(name == b"via" and VIA in value for name, value in headers)


def fields_to_engine(headers: Headers) -> bytes:
    """The client's fields (names in lower case) as the engine shall see them, each with its line's
    end; the request's id, its length, the host and the key are the router's to say."""
    return _fields(headers, _NOT_FORWARDED)


def fields_to_client(status: int, headers: Headers) -> bytes:
    """The status line and the engine's fields (names in lower case) as the client shall see them,
    each with its line's end; the request's id, the replica and the framing are the router's."""
    return (_STATUS_LINES.get(status) or _status_line(status)) + _fields(headers, _NOT_RETURNED)


def _fields(headers: Headers, dropped: frozenset[bytes]) -> bytes:
    for name, value in headers:
        if name == b"connection" and value not in _PLAIN_CONNECTION:
            # Fields that it declares to be about this connection only.
            dropped = dropped.union(token.strip().lower() for token in value.split(b","))
    return b"".join([b"%b: %b\r\n" % field for field in headers if field[0] not in dropped])


def own_head(
    status: int,
    length: int,
    ident: bytes,
    extra: Mapping[str, str],
    date_line: bytes = b"",
    *,
    any_origin: bool = False,
) -> bytes:
    """The head of an answer of the router's own, in JSON."""
    lines = [
        _STATUS_LINES[status],
        b"content-type: application/json\r\ncontent-length: %d\r\n" % length,
        b"x-request-id: %b\r\n" % ident,
        date_line,
    ]
    lines += [f"{name.lower()}: {value}\r\n".encode("latin-1") for name, value in extra.items()]
    if any_origin:
        lines.append(ANY_ORIGIN)
    lines.append(b"\r\n")
    return b"".join(lines)


def find(headers: Headers, wanted: bytes) -> str:
    """The first field of that (lower-case) name as text, empty if there is none."""
    for name, value in headers:
        if name == wanted:
            return value.decode("latin-1")
    return ""
