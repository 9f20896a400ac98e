"""How many requests may be sent a second time. Pure."""

from __future__ import annotations


class RetryBudget:
    """A bucket of retries: filled by requests and by time, emptied by retries.

    The reserve is large enough for a node with all its replicas to die under load; when
    everything fails, retries are a fifth of the requests at most and cannot pile up.
    """

    __slots__ = ("_last_s", "_per_request", "_per_s", "_reserve", "_tokens")

    def __init__(
        self, *, reserve: float = 1000.0, per_request: float = 0.2, per_s: float = 20.0
    ) -> None:
        self._reserve = reserve
        self._per_request = per_request
        self._per_s = per_s
        self._tokens = reserve
        self._last_s: float | None = None

    def earn(self) -> None:
        """A request came in."""
        self._tokens = min(self._reserve, self._tokens + self._per_request)

    def spend(self, now_s: float) -> bool:
        """Take one retry; false if none is left."""
        if self._last_s is not None:
            self._tokens = min(self._reserve, self._tokens + (now_s - self._last_s) * self._per_s)
        self._last_s = now_s
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
