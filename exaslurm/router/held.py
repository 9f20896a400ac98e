"""Requests for models that have no replica now, and for which one is started. Pure.

They wait here, before the queues of the admission, and go on when a replica serves. The admission
asks and counts the limits of their keys as they come, so that what it would refuse is refused at
once. They are bounded in number and in time; who waits in vain is told when to try again.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Protocol

from exaslurm.core.limits import Limits
from exaslurm.router.admission import Admission, Entry
from exaslurm.router.key_use import refusal

WAKE_FULL = "wake_full"
WAKE_TIMEOUT = "wake_timeout"
_RETRY_S = 30.0
# In one turn of the event loop: each opens a connection, and the streams of others go on meanwhile.
_WOKEN_AT_ONCE = 64


class Sleeper(Entry, Protocol):
    """A request that waits. ``woken`` and ``refused`` are called, one of them and once. Who is
    woken enters the admission at once."""

    def woken(self) -> None: ...


class Held:
    """The requests of one router process that wait for a replica. ``clock``: monotonic seconds;
    ``soon``: has something done in the next turn of the event loop."""

    def __init__(
        self,
        limits: Limits,
        admission: Admission,
        soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._admission = admission
        self._soon = soon
        self._clock = clock
        # In the order they came, which is that of their deadlines.
        self._waiting: OrderedDict[Sleeper, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def hold(self, request: Sleeper, tokens: int) -> None:
        """Have it wait until a replica of its model serves; ``tokens`` as in ``Admission.enter``.
        RequestError 503 if too many do, 429 for a limit of its key."""
        limits, waiting = self._limits, len(self._waiting)
        free = limits.max_waiting - waiting
        of_key = self._admission.held_of(request.key)
        # A key may take half of what is free, as in the queues of the admission.
        if free <= 0 or (limits.max_waiting_per_key is None and of_key >= free):
            raise refusal(
                503,
                WAKE_FULL,
                _RETRY_S,
                f"no replica of {request.model!r} serves now; one is started, and of at most "
                f"{limits.max_waiting} requests {waiting} wait already, {of_key} of them of the "
                f"key {request.key.name!r}",
            )
        self._admission.hold(request, tokens)
        self._waiting[request] = self._clock() + limits.wake_s

    def discard(self, request: Sleeper) -> None:
        """It waits no longer, for whatever reason."""
        if self._waiting.pop(request, None) is not None:
            self._admission.leave(request, 0)

    def wake(self, model: str) -> None:
        """A replica serves a name: those that wait for it go on, in the order they came."""
        self._go_on([one for one in self._waiting if one.model == model])

    def _go_on(self, woken: list[Sleeper]) -> None:
        for request in woken[:_WOKEN_AT_ONCE]:
            if self._waiting.pop(request, None) is not None:
                request.woken()
        rest = woken[_WOKEN_AT_ONCE:]
        if rest:
            self._soon(lambda: self._go_on(rest))

    def sweep(self, now_s: float) -> None:
        """Refuse those who have waited too long. To be called a few times a second."""
        while self._waiting:
            request, deadline_s = next(iter(self._waiting.items()))
            if deadline_s > now_s:
                return
            self.discard(request)
            text = f"no replica of {request.model!r} came up within {self._limits.wake_s:g} s"
            request.refused(refusal(503, WAKE_TIMEOUT, _RETRY_S, text))

    def counts(self) -> Mapping[str, int]:
        """How many wait, by served name."""
        found: dict[str, int] = {}
        for request in self._waiting:
            found[request.model] = found.get(request.model, 0) + 1
        return found
