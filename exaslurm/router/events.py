"""Event streams: where an event ends, whether a stream is whole, and how to end a broken one. Pure.

Chunks of TCP are not events, so nothing here parses a chunk; bytes pass unchanged, only cut
after the last whole event, so that what is said in place of a lost rest is well formed.
"""

from __future__ import annotations

import json
import re
from typing import Final

from exaslurm.router.usage import Usage

# A line ends with LF, CRLF or CR, and an event with an empty line. The usual way is the first.
SEPARATORS: Final = (b"\n\n", b"\n\r\n", b"\r\r", b"\r\r\n", b"\n\r")
# An event this long (log-probabilities, audio) passes in pieces rather than wait in memory.
MAX_HELD_BYTES: Final = 256 * 1024
_DONE: Final = b"data: [DONE]"
_ERROR: Final = re.compile(rb'(?:^|(?<=\r))(?:data:\s*\{"error":|event:\s*error\b)', re.MULTILINE)
_CLIENT_FAULT: Final = re.compile(rb'"code":\s*4\d\d\b')
_ENDS_WITH_DONE: Final = frozenset(("/v1/chat/completions", "/v1/completions"))


class EventStream:
    """Follows what has passed of one stream. ``error``: an error event of the engine's own has
    passed, and it was not the client's fault. ``usage``: what it took, as told in what was looked
    at; ``inside_event``: what has passed ends there.
    """

    __slots__ = ("_needs_done", "_path", "_seen_done", "error", "inside_event", "usage")

    def __init__(self, path: str) -> None:
        self.error = False
        self.usage = Usage()
        self._path = path
        self._needs_done = path in _ENDS_WITH_DONE
        self.inside_event = False
        self._seen_done = False

    def passed(self, events: bytes) -> None:
        """This goes to the client now: whole events, as a rule."""
        was_inside = self.inside_event
        self.inside_event = not events.endswith(SEPARATORS)
        if b"[DONE]" in events and _DONE in events:
            self._seen_done = True
        if b"error" in events:
            found = _ERROR.search(events)
            if found and not _CLIENT_FAULT.search(events, found.end()):
                self.error = True
        if events.find(b'"usage"') >= 0 or self.inside_event or was_inside:
            self.usage.passed(events, cut=self.inside_event)

    @property
    def whole(self) -> bool:
        """Whether the stream has come to its proper end (if it ends here)."""
        return self._seen_done or not self._needs_done

    @property
    def over(self) -> bool:
        """Whether the end has passed, so that nothing may follow."""
        return self._seen_done

    def broken(self, message: str) -> bytes:
        """What to send in place of the lost rest of the stream; nothing after its end."""
        if self._seen_done:
            return b""
        return (b"\n\n" if self.inside_event else b"") + error_events(self._path, message)


def cut(data: bytes) -> int:
    """How much of ``data`` is whole events."""
    if data.endswith(SEPARATORS):
        return len(data)
    at = data.rfind(b"\n\n")
    end = at + 2 if at >= 0 else 0
    if data.find(b"\r") >= 0:
        for mark in SEPARATORS[1:]:
            at = data.rfind(mark)
            if at >= 0:
                end = max(end, at + len(mark))
    return len(data) if end == 0 and len(data) > MAX_HELD_BYTES else end


def is_engine_error(first: bytes) -> bool:
    """Whether a stream begins with an error event that is not the client's fault."""
    found = _ERROR.match(first)
    return found is not None and not _CLIENT_FAULT.search(first, found.end())


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
