"""What is known of one request on its way through the router, and what became of it."""

from __future__ import annotations

from typing import Final

from exaslurm.keys.clients import KeyInfo

CLIENT_LEFT: Final = 499
UNKNOWN_MODEL: Final = "-"
NOBODY: Final = KeyInfo(name="", created_s=0.0)
"""Who a request is from before it has shown a key."""


class Call:
    """One proxied request. Times are monotonic seconds.

    ``status`` is what the client got: 0 nothing yet, 499 it left first. ``model`` is a served
    name, ``-`` before it is known; ``replica`` the last one tried. Tokens are the engine's own
    count, None where it did not say. ``broken``: the answer had begun and was lost. ``cause``: in
    a word, why there was no good answer.
    """

    __slots__ = (
        "broken",
        "bytes_in",
        "bytes_out",
        "cause",
        "completion_tokens",
        "ended_s",
        "first_byte_s",
        "ident",
        "key",
        "model",
        "prompt_tokens",
        "replica",
        "retries",
        "route",
        "started_s",
        "status",
        "stream",
        "version",
    )

    def __init__(self, route: str, ident: bytes, started_s: float) -> None:
        self.route = route
        self.ident = ident
        self.started_s = started_s
        self.key = NOBODY
        self.model = UNKNOWN_MODEL
        self.version = ""
        self.replica = ""
        self.status = 0
        self.stream = False
        self.first_byte_s: float | None = None
        self.ended_s = started_s
        self.bytes_in = 0
        self.bytes_out = 0
        self.retries = 0
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.broken = False
        self.cause = ""
