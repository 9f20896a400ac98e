"""What can be set of a router."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """One router's settings.

    ``max_sends`` bounds how many replicas may get one request; a connection that could not be
    opened does not count there, ``max_attempts`` bounds those too. ``idle_s`` must stay below the
    engines' keep-alive (uvicorn's, 5 s), or a request meets a connection that is being closed.
    ``dead_peer_s``: data or keepalive unacknowledged for so long means that the host is gone.
    """

    deployment: str
    internal_key: str | None = None
    max_body_bytes: int = 64 * 1024 * 1024
    max_buffered_answer_bytes: int = 1024 * 1024
    max_sends: int = 3
    max_attempts: int = 16
    connect_timeout_s: float = 2.0
    dead_peer_s: float = 2.0
    idle_s: float = 4.0
    retry_after_s: int = 5
