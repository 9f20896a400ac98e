"""What can be set of a router."""

from __future__ import annotations

from dataclasses import dataclass, field

from exaslurm.core.canary import Canary
from exaslurm.core.limits import Limits
from exaslurm.core.plan import RouterPolicy
from exaslurm.router.direct import DirectSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """One router's settings.

    ``policy``: ``affinity`` sends prompts that begin alike to the same replica as long as its load
    allows, ``power_of_two`` goes by load alone. ``check``: refuse what vLLM would refuse anyway.

    ``limits`` are those of all ``processes`` that serve on the same port.

    ``max_sends`` bounds how many replicas may get one request; a connection that could not be
    opened does not count there, ``max_attempts`` bounds those too. ``idle_s`` must stay below the
    engines' keep-alive (uvicorn's, 5 s) by more than the router's sweep takes to come by, or a
    request meets a connection that is being closed. ``dead_peer_s``: data or keepalive
    unacknowledged for so long means that the host is gone.

    A request on a living connection is given up only after ``first_byte_timeout_s`` without any
    answer (a queue may be long), and a stream after ``stall_timeout_s`` without a byte.
    ``hedge_after_s``: without an answer for so long, ask a second replica too and take what comes
    first (None: never; it costs work twice). ``long_body_bytes``: from here on a replica is
    looked for that has room for the prompt.
    """

    deployment: str
    internal_key: str | None = None
    policy: RouterPolicy = "affinity"
    check: bool = True
    limits: Limits = field(default_factory=Limits)
    processes: int = 1
    canary: Canary = field(default_factory=Canary)
    direct: DirectSettings = field(default_factory=DirectSettings)
    max_body_bytes: int = 64 * 1024 * 1024
    max_buffered_answer_bytes: int = 1024 * 1024
    long_body_bytes: int = 8192
    max_sends: int = 3
    max_attempts: int = 16
    connect_timeout_s: float = 2.0
    dead_peer_s: float = 2.0
    idle_s: float = 3.5
    first_byte_timeout_s: float = 1800.0
    stall_timeout_s: float = 120.0
    slow_client_timeout_s: float = 600.0
    body_timeout_s: float = 30.0
    min_upload_bytes_per_s: int = 1024
    hedge_after_s: float | None = None
    retry_after_s: int = 5
