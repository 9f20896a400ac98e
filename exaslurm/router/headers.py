"""Which header fields pass the router. Pure."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable

Headers = list[tuple[bytes, bytes]]

# RFC 9110, 7.6.1: about one connection, not about the message.
_HOP_BY_HOP = frozenset(
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
_NOT_FORWARDED = _HOP_BY_HOP | {
    b"authorization",
    b"content-length",
    b"expect",
    b"host",
    b"x-api-key",
    b"x-request-id",
}
# uvicorn writes its own date; the length stays the engine's.
_NOT_RETURNED = _HOP_BY_HOP | {b"date", b"x-request-id"}
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The client's ``X-Request-Id`` if it is a harmless one, else a new one."""
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return value
    return secrets.token_hex(12).encode()


def to_engine(headers: Headers, ident: bytes, internal_key: str | None) -> Headers:
    """The client's fields as the engine shall see them (names in lower case, as in ASGI)."""
    dropped = _NOT_FORWARDED | _named_by_connection(headers)
    fields = [(name, value) for name, value in headers if name not in dropped]
    fields.append((b"x-request-id", ident))
    if internal_key is not None:
        fields.append((b"authorization", b"Bearer " + internal_key.encode()))
    return fields


def to_client(headers: Headers, ident: bytes, replica: str, *, stream: bool) -> Headers:
    """The engine's fields as the client shall see them."""
    lower = [(name.lower(), value) for name, value in headers]
    dropped = _NOT_RETURNED | _named_by_connection(lower)
    fields = [(name, value) for name, value in lower if name not in dropped]
    fields.append((b"x-request-id", ident))
    fields.append((b"x-exaslurm-replica", replica.encode()))
    if stream:
        # A proxy in front of the router must not collect the events.
        fields.append((b"x-accel-buffering", b"no"))
        if not any(name == b"cache-control" for name, _ in fields):
            fields.append((b"cache-control", b"no-cache"))
    return fields


def find(headers: Headers, wanted: bytes) -> str:
    """The first field of that (lower-case) name as text, empty if there is none."""
    for name, value in headers:
        if name == wanted:
            return value.decode("latin-1")
    return ""


def _named_by_connection(headers: Headers) -> set[bytes]:
    return {
        token.strip().lower()
        for name, value in headers
        if name == b"connection"
        for token in value.split(b",")
    }
