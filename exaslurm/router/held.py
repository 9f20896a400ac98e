"""Requests for models that have no replica now, and for which one is started. Pure.

They wait here, before the admission, and go on when a replica serves. They are bounded in number
and in time; who waits in vain is told when to try again.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Protocol

from exaslurm.core.limits import Limits
from exaslurm.router.errors import RequestError
from exaslurm.router.key_use import refusal

WAKE_FULL = "wake_full"
WAKE_TIMEOUT = "wake_timeout"
_RETRY_S = 30.0


class Sleeper(Protocol):
    """A request that waits. ``woken`` and ``refused`` are called, one of them and once."""

    @property
    def model(self) -> str: ...

    def woken(self) -> None: ...

    def refused(self, error: RequestError) -> None: ...


class Held:
    """The requests of one router process that wait for a replica. ``clock``: monotonic seconds."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        # In the order they came, which is that of their deadlines.
        self._waiting: OrderedDict[Sleeper, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def hold(self, request: Sleeper) -> None:
        """Have it wait until a replica of its model serves. RequestError 503 if too many do."""
        most = self._limits.max_waiting
        if len(self._waiting) >= most:
            raise refusal(
                503,
                WAKE_FULL,
                _RETRY_S,
                f"no replica of {request.model!r} serves now; one is started, and {most} requests "
                "wait already",
            )
        self._waiting[request] = self._clock() + self._limits.wake_s

    def discard(self, request: Sleeper) -> None:
        """It waits no longer, for whatever reason."""
        self._waiting.pop(request, None)

    def wake(self, model: str) -> None:
        """A replica serves a name: those that wait for it go on."""
        for request in [one for one in self._waiting if one.model == model]:
            del self._waiting[request]
            request.woken()

    def sweep(self, now_s: float) -> None:
        """Refuse those who have waited too long. To be called a few times a second."""
        while self._waiting:
            request, deadline_s = next(iter(self._waiting.items()))
            if deadline_s > now_s:
                return
            del self._waiting[request]
            text = f"no replica of {request.model!r} came up within {self._limits.wake_s:g} s"
            request.refused(refusal(503, WAKE_TIMEOUT, _RETRY_S, text))

    def counts(self) -> Mapping[str, int]:
        """How many wait, by served name."""
        found: dict[str, int] = {}
        for request in self._waiting:
            found[request.model] = found.get(request.model, 0) + 1
        return found
