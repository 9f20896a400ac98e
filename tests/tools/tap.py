"""A tap between a router and an engine: passes all bytes, and remembers what each side said."""

from __future__ import annotations

import contextlib
import http.client
import io
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

_PIECE_BYTES = 1 << 16


@dataclass
class Exchange:
    """One request and its answer, as they went over the wire."""

    request: bytearray = field(default_factory=bytearray)
    answer: bytearray = field(default_factory=bytearray)

    @property
    def asked_body(self) -> bytes:
        """The body of the request, which must not be in chunks."""
        return bytes(self.request).partition(b"\r\n\r\n")[2]

    @property
    def answered_body(self) -> bytes:
        """The body of the answer, without the framing of chunks."""
        answer = http.client.HTTPResponse(cast(socket.socket, _Recorded(bytes(self.answer))))
        answer.begin()
        return answer.read()


class _Recorded:
    """What was received, as a socket that it can be received from."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, *_: Any) -> io.BytesIO:
        return io.BytesIO(self._data)


class Tap:
    """Listens on loopback in front of ``url``. HTTP/1.1 without pipelining, as routers speak it:
    what comes after an answer has begun is the next request."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self._target = (where.hostname or "", where.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._exchanges: list[Exchange] = []
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._thread = threading.Thread(target=self._accept, name="tap", daemon=True)
        self._thread.start()

    def find(self, ident: str, timeout_s: float = 5.0) -> Exchange:
        """The exchange that has this text in its request."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            with self._lock:
                found = [each for each in self._exchanges if ident.encode() in each.request]
            if found:
                assert len(found) == 1, f"{len(found)} exchanges have {ident}"
                return found[0]
            assert time.monotonic() < deadline_s, f"no exchange has {ident}"
            time.sleep(0.01)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        for pair in self._pairs:
            _end(pair)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(self._target, timeout=5)
                except OSError:
                    near.close()
                    continue
                far.settimeout(None)
                pair = (near, far)
                self._pairs.append(pair)
                for sock in pair:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                current: list[Exchange] = []
                for work in (self._requests, self._answers):
                    threading.Thread(target=work, args=(pair, current), daemon=True).start()

    def _requests(self, pair: tuple[socket.socket, socket.socket], current: list[Exchange]) -> None:
        near, far = pair
        with contextlib.suppress(OSError):
            while data := near.recv(_PIECE_BYTES):
                with self._lock:
                    if not current or current[-1].answer:
                        current.append(Exchange())
                        self._exchanges.append(current[-1])
                    current[-1].request += data
                far.sendall(data)
        _end(pair)

    def _answers(self, pair: tuple[socket.socket, socket.socket], current: list[Exchange]) -> None:
        near, far = pair
        with contextlib.suppress(OSError):
            while data := far.recv(_PIECE_BYTES):
                with self._lock:
                    current[-1].answer += data
                near.sendall(data)
        _end(pair)


def _end(pair: tuple[socket.socket, socket.socket]) -> None:
    for sock in pair:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()
