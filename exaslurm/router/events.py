"""Event streams: where an event ends, whether a stream is whole, and how to end a broken one.

Chunks of TCP are not events, so nothing here parses a chunk; bytes pass unchanged, only cut
after the last whole event, so that what is said in place of a lost rest is well formed.
"""

from __future__ import annotations

import json
import re

# An event this long (log-probabilities, audio) passes in pieces rather than wait in memory.
_MAX_HELD_BYTES = 256 * 1024
_SEPARATORS = (b"\n\n", b"\r\n\r\n")
_DONE = b"data: [DONE]"
_ERROR = re.compile(rb'^(?:data:\s*\{"error":|event:\s*error\b)', re.MULTILINE)
_CLIENT_FAULT = re.compile(rb'"code":\s*4\d\d\b')
_ENDS_WITH_DONE = frozenset(("/v1/chat/completions", "/v1/completions"))


class EventStream:
    """Follows one stream. ``error``: an error event of the engine's own has passed, and it was
    not the client's fault."""

    def __init__(self, path: str) -> None:
        self.error = False
        self._path = path
        self._held = b""
        self._inside_event = False
        self._seen_done = False

    def feed(self, chunk: bytes) -> bytes:
        """What can be passed on now: whole events, less whatever is not whole yet."""
        data = self._held + chunk if self._held else chunk
        end = len(data) if data.endswith(_SEPARATORS) else _last_boundary(data)
        if end == 0 and len(data) > _MAX_HELD_BYTES:
            end = len(data)
        passed, self._held = data[:end], data[end:]
        if passed:
            self._look(passed)
        return passed

    def finish(self) -> tuple[bytes, bool]:
        """At a regular end: the held rest, and whether the stream was whole."""
        rest, self._held = self._held, b""
        if rest:
            self._look(rest)
        return rest, self._seen_done or self._path not in _ENDS_WITH_DONE

    def broken(self, message: str) -> bytes:
        """What to send in place of the lost rest of the stream; nothing after its end."""
        if self._seen_done:
            return b""
        return (b"\n\n" if self._inside_event else b"") + error_events(self._path, message)

    def _look(self, passed: bytes) -> None:
        self._inside_event = not passed.endswith(_SEPARATORS)
        if _DONE in passed:
            self._seen_done = True
        found = _ERROR.search(passed)
        if found and not _CLIENT_FAULT.search(passed, found.end()):
            self.error = True


def is_engine_error(first: bytes) -> bool:
    """Whether a stream begins with an error event that is not the client's fault."""
    found = _ERROR.match(first)
    return found is not None and not _CLIENT_FAULT.search(first, found.end())


def _last_boundary(data: bytes) -> int:
    return max((at + len(mark) for mark in _SEPARATORS if (at := data.rfind(mark)) >= 0), default=0)


def error_events(path: str, message: str) -> bytes:
    """An error as the clients of this path understand it, and the end of the stream."""
    if path == "/v1/messages":
        error = {"type": "error", "error": {"type": "api_error", "message": message}}
        return b"event: error\ndata: " + _json(error) + b"\n\n"
    if path == "/v1/responses":
        event = {"type": "error", "code": "server_error", "message": message, "param": None}
        return b"event: error\ndata: " + _json(event) + b"\n\n"
    body = {"message": message, "type": "UpstreamError", "param": None, "code": 502}
    return b"data: " + _json({"error": body}) + b"\n\ndata: [DONE]\n\n"


def _json(data: object) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
