"""An engine that answers everything, and complains of everything that is not good HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import httptools

_PLAIN = json.dumps({"object": "chat.completion", "usage": {"prompt_tokens": 1}}).encode()
_EVENT = b'data: {"choices":[]}\n\n'
_END = b"data: [DONE]\n\n"
_EVENTS_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_PAUSE_S = 0.005
_MODELS = {"object": "list", "data": [{"id": "fuzzed", "object": "model"}]}
_FIGURES = b"""vllm:num_requests_running{engine="0"} 0
vllm:num_requests_waiting{engine="0"} 0
"""
_PAGES = {b"/v1/models": json.dumps(_MODELS).encode(), b"/metrics": _FIGURES, b"/health": b""}


class StrictEngine:
    """Serves on a thread of its own. ``complaints``: what a router must not send an engine."""

    def __init__(self, secret: str) -> None:
        self.secret = secret.encode()
        self.complaints: list[str] = []
        self.requests = 0
        self.open = 0
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine")
        self._thread.start()
        assert self._started.wait(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        listening = self._loop.run_until_complete(
            self._loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        )
        self.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        self._started.set()
        self._loop.run_forever()
        listening.close()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)

    def complain(self, what: str) -> None:
        self.complaints.append(what)


class _Connection(asyncio.Protocol):
    def __init__(self, engine: StrictEngine) -> None:
        self._engine = engine
        self._parser: Any = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._engine.open += 1

    def connection_lost(self, _error: Exception | None) -> None:
        self._engine.open -= 1

    def data_received(self, data: bytes) -> None:
        if self._engine.secret in data:
            self._engine.complain(f"the client's key: {data[:300]!r}")
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._engine.complain(f"not HTTP: {error!r}: {data[:300]!r}")
            self._transport.close()

    def on_message_begin(self) -> None:
        self._url = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._body = b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name.lower(), value))

    def on_body(self, part: bytes) -> None:
        self._body += part

    def on_message_complete(self) -> None:
        path = self._url.partition(b"?")[0]
        if self._parser.get_method() == b"GET":
            self._answer(_PAGES.get(path, b"{}"))
            return
        engine = self._engine
        engine.requests += 1
        names = [name for name, _ in self._fields]
        for name in (b"content-length", b"host", b"x-request-id"):
            if names.count(name) != 1:
                engine.complain(f"{names.count(name)} of {name!r}: {self._fields}")
        for name in (b"transfer-encoding", b"expect", b"upgrade", b"x-api-key"):
            if name in names:
                engine.complain(f"{name!r} was passed on: {self._fields}")
        kind = dict(self._fields).get(b"content-type", b"")
        stream = False
        if not kind.lower().startswith(b"multipart/"):
            try:
                stream = json.loads(self._body).get("stream") is True
            except (ValueError, AttributeError, RecursionError) as error:
                engine.complain(f"not a JSON object ({error}): {self._body[:200]!r}")
        if stream:
            self._transport.write(_EVENTS_HEAD)
            self._stream(4)
        else:
            self._answer(_PLAIN)

    def _answer(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self._transport.write(head % len(body) + body)

    def _stream(self, left: int) -> None:
        """One event now, the others later: a client may be gone by then."""
        if self._transport.is_closing():
            return
        event = _EVENT if left else _END
        self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        if left:
            asyncio.get_running_loop().call_later(_PAUSE_S, self._stream, left - 1)
        else:
            self._transport.write(b"0\r\n\r\n")
