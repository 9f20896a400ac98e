"""Both ends of a connection show that they know the same key, before anything else is read.

Each proves it over both sides' random numbers, so that nothing of an earlier meeting can be used
again. The data that follow are neither secret nor signed: they are random bytes to measure with.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from dataclasses import dataclass

MAGIC = b"XFP1"
_HELLO = struct.Struct("!4s16sHB")
_MAC_BYTES = 32
_OK = b"\x01"

CHECK, MEASURE = 0, 1


class HandshakeError(OSError):
    """The other end is none of ours, or was gone before it was known."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Who calls, and what for: ``CHECK`` (can it be reached at all) or ``MEASURE``."""

    rank: int
    kind: int


def call(sock: socket.socket, key: bytes, hello: Hello) -> None:
    """The side that connected. Raises HandshakeError, TimeoutError or another OSError."""
    opening = _HELLO.pack(MAGIC, secrets.token_bytes(16), hello.rank, hello.kind)
    sock.sendall(opening)
    answer = receive(sock, 16 + _MAC_BYTES)
    nonce, proof = answer[:16], answer[16:]
    if not hmac.compare_digest(proof, _mac(key, b"answers", opening, nonce)):
        raise HandshakeError("the other end does not know the key")
    sock.sendall(_mac(key, b"calls", opening, nonce))
    if receive(sock, 1) != _OK:
        raise HandshakeError("the other end said no")


def answer(sock: socket.socket, key: bytes) -> Hello:
    """The side that accepted, up to ``welcome``; errors as of ``call``."""
    opening = receive(sock, _HELLO.size)
    magic, _, rank, kind = _HELLO.unpack(opening)
    if magic != MAGIC:
        raise HandshakeError("not a caller of ours")
    nonce = secrets.token_bytes(16)
    sock.sendall(nonce + _mac(key, b"answers", opening, nonce))
    if not hmac.compare_digest(receive(sock, _MAC_BYTES), _mac(key, b"calls", opening, nonce)):
        raise HandshakeError("the caller does not know the key")
    return Hello(rank, kind)


def welcome(sock: socket.socket) -> None:
    """Tell the caller that it is known, once everything is ready for it."""
    sock.sendall(_OK)


def receive(sock: socket.socket, size: int) -> bytes:
    """Exactly ``size`` bytes; HandshakeError if the connection ends before."""
    found = bytearray()
    while len(found) < size:
        part = sock.recv(size - len(found))
        if not part:
            raise HandshakeError("the connection ended")
        found += part
    return bytes(found)


def _mac(key: bytes, word: bytes, opening: bytes, nonce: bytes) -> bytes:
    return hmac.new(key, word + b"|" + opening + nonce, "sha256").digest()
