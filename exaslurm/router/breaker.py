"""When a replica that fails is left alone, and when it is tried again. Pure."""

from __future__ import annotations

FAILURES_TO_OPEN = 3
FIRST_WAIT_S = 1.0
MAX_WAIT_S = 30.0
FIRST_PATIENCE_S = 5.0


class Breaker:
    """Counts failures in a row of one replica.

    closed: used. open: left alone until ``retry_at_s``. probing: a request tries it; its
    answer closes the breaker as soon as it begins, or opens it for twice as long. As long as
    neither has happened another request may try it, too, from ``retry_at_s`` on: a good answer may
    take minutes. Each one waits twice as long as the last, so that a replica that never answers
    costs few. Clocks are the caller's (monotonic seconds).
    """

    __slots__ = ("_failures", "_probes", "_wait_s", "clean", "retry_at_s", "state")

    def __init__(self) -> None:
        self.state: str = "closed"
        self.clean = True
        """Whether a success would tell nothing new."""
        self.retry_at_s = 0.0
        self._failures = 0
        self._probes = 0
        self._wait_s = FIRST_WAIT_S

    @property
    def closed(self) -> bool:
        return self.state == "closed"

    def success(self) -> bool:
        """A request was answered; true if that closes the breaker."""
        self._failures = 0
        self._wait_s = FIRST_WAIT_S
        reopened = not self.closed
        self.state = "closed"
        self.clean = True
        return reopened

    def begins_well(self) -> bool:
        """The answer to the probe has begun, which may go on for minutes; true if that closes the
        breaker. Should it break off after all, the breaker opens at once, for twice as long."""
        if self.state != "probing":
            return False
        self.state = "closed"
        self._failures = FAILURES_TO_OPEN - 1
        self._wait_s = min(self._wait_s * 2, MAX_WAIT_S)
        return True

    def failure(self, now_s: float, *, fatal: bool = False) -> bool:
        """A request failed (``fatal``: nobody listens there, no need to count); true if that
        opens the breaker, or opens it anew."""
        self._failures += 1
        self.clean = False
        if self.state == "open":
            return False  # a request from before it opened
        if self.state == "probing":
            self._wait_s = min(self._wait_s * 2, MAX_WAIT_S)
        elif not fatal and self._failures < FAILURES_TO_OPEN:
            return False
        self.state = "open"
        self.retry_at_s = now_s + self._wait_s
        return True

    def may_probe(self, now_s: float) -> bool:
        return self.state != "closed" and now_s >= self.retry_at_s

    def begin_probe(self, now_s: float) -> None:
        self._probes = self._probes + 1 if self.state == "probing" else 1
        self.state = "probing"
        self.clean = False
        self.retry_at_s = now_s + FIRST_PATIENCE_S * (1 << (self._probes - 1))

    def abandon_probe(self, now_s: float) -> bool:
        """A probing request told nothing (its client left); true if another may probe now."""
        if self.state != "probing":
            return False
        self._probes -= 1
        if not self._probes:
            self.state = "open"
        self.retry_at_s = now_s
        return True

    def reset(self) -> bool:
        """Its cell says that it is newly ready; true if that closes the breaker."""
        return self.success()
