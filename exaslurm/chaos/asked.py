"""One request of a load, and which class its end belongs to. Pure.

The classes are those in which the project counts failures everywhere: *not begun* (nothing of an
answer had come: must not happen), *begun stream* (what had come ends with a well-formed error
event, or it does not), *in flight on a killed router* (the connection to the router itself was
lost: the client connects once more).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

Class = Literal["ok", "not_begun", "begun_event", "begun_cut", "router_lost"]
FAILURES: tuple[Class, ...] = ("not_begun", "begun_event", "begun_cut", "router_lost")


@dataclass(slots=True, kw_only=True)
class Asked:
    """One request. Times are monotonic; 0: it did not come so far. ``begun_s`` is when the first
    byte of an answer with status 200 came, ``tail`` the last part of what came. ``lost``: the
    connection to the router ended (or none was to be had) before the answer was complete;
    ``late``: the client's own time-out ended it. ``reconnected``: it was asked a second time, over
    a new connection, because the first was lost."""

    stream: bool
    asked_s: float
    status: int = 0
    begun_s: float = 0.0
    ended_s: float = 0.0
    replica: str = ""
    tail: bytes = b""
    lost: bool = False
    late: bool = False
    reconnected: bool = False
    said: str = ""


def classify(asked: Asked, *, router_died: bool = False) -> Class:
    """The class of a request that has ended. ``router_died``: a router that it may have been at was
    killed meanwhile, so that a lost connection is no fault of what stands behind it."""
    if is_complete(asked):
        return "ok"
    if asked.lost and router_died and not asked.late:
        return "router_lost"
    if not asked.begun_s or not asked.stream:
        return "not_begun"
    return "begun_event" if ends_with_error(asked.tail) else "begun_cut"


def is_complete(asked: Asked) -> bool:
    """Whether it was answered, and wholly."""
    if asked.status != 200 or asked.lost or asked.late:
        return False
    if not asked.stream:
        return _has_choices(asked.tail)
    data = last_events(asked.tail)
    return bool(data) and data[-1] == b"[DONE]" and not any(map(_error_of, data))


def ends_with_error(tail: bytes) -> bool:
    """Whether a stream's end is a well-formed error event (``[DONE]`` may follow): the client of
    any OpenAI library gets an error then, and not a short answer that looks whole."""
    data = last_events(tail)
    if data and data[-1] == b"[DONE]":
        data.pop()
    return bool(data) and _error_of(data[-1]) is not None


def last_events(tail: bytes) -> list[bytes]:
    """Data of the events that stand whole in the last part of a stream."""
    text = tail.replace(b"\r\n", b"\n")
    if not text.endswith(b"\n\n"):
        return []  # it breaks off inside an event
    events = text.split(b"\n\n")[:-1]
    return [
        event.removeprefix(b"data:").strip()
        for event in events
        # Of the first one the beginning may be missing.
        if event.startswith(b"data:")
    ]


def _error_of(data: bytes) -> str | None:
    """The message of an error event; None for any other event."""
    if b'"error"' not in data:
        return None
    try:
        error = json.loads(data)["error"]
        return str(error["message"])
    except (ValueError, KeyError, TypeError):
        return None


def _has_choices(body: bytes) -> bool:
    try:
        return bool(json.loads(body)["choices"])
    except (ValueError, KeyError, TypeError):
        return False
