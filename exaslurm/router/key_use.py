"""What one key uses, and whether that is within its limits. Pure."""

from __future__ import annotations

import math
from collections.abc import MutableSequence

from exaslurm.keys.clients import KeyInfo
from exaslurm.router.errors import RequestError
from exaslurm.router.quotas import SharedQuotas, own_cells
from exaslurm.router.rate import Bucket

# Why a request was refused: the ``cause`` of the error.
KEY_CONCURRENCY = "key_concurrency"
KEY_REQUESTS = "key_requests"
KEY_TOKENS = "key_tokens"

_BUSY_RETRY_S = 1


class KeyUse:
    """One key. ``limited``: whether anything but the whole router's limits bounds it; ``alone``:
    what it uses is counted by this process only, and was to be shared. Its requests here are at
    engines (``in_flight``), wait for one (``waiting``) or for a replica to be started (``held``).
    """

    __slots__ = (
        "_cells",
        "_quotas",
        "alone",
        "concurrency",
        "held",
        "in_flight",
        "key",
        "limited",
        "name",
        "requests",
        "shared",
        "tokens",
        "waiting",
    )

    def __init__(self, key: KeyInfo, quotas: SharedQuotas | None) -> None:
        self.name = key.name
        self.in_flight = 0
        self.waiting = 0
        self.held = 0
        self.requests: Bucket | None = None
        self.tokens: Bucket | None = None
        self.shared: SharedQuotas | None = None
        self.alone = False
        self._quotas = quotas
        self._cells: tuple[MutableSequence[float], int] | None = None
        self.follow(key)

    def follow(self, key: KeyInfo) -> None:
        """Take over the limits of a key, which may have been changed."""
        self.key = key
        self.concurrency = key.concurrency or math.inf
        self.limited = bool(key.concurrency or key.requests_per_min or key.tokens_per_min)
        quotas = self._quotas
        if self.limited and self._cells is None:
            self._cells = quotas.join(key.name) if quotas is not None else own_cells()
            if self._cells is None:
                self.alone = True
                self._cells = own_cells()
        self._limit()
        # From the first limit on, others are told what is at hand here: they may know it first.
        if quotas is not None and self.limited:
            self.shared = quotas
            self.publish()

    def join(self) -> bool:
        """Share what it uses after all; whether that could be done now."""
        found = self._quotas.join(self.name) if self._quotas is not None else None
        if found is None or self._cells is None:
            return False
        (shared, at), (own, first) = found, self._cells
        for number in (0, 1):  # each says when the bucket is full again
            shared[at + number] = max(shared[at + number], own[first + number])
        self._cells = found
        self.alone = False
        self._limit()
        self.publish()
        return True

    def _limit(self) -> None:
        self.requests = self._bucket(self.key.requests_per_min, 0)
        self.tokens = self._bucket(self.key.tokens_per_min, 1)

    def publish(self) -> None:
        """Tell the other processes how many requests are at hand here."""
        if self.shared is not None:
            self.shared.publish(self.name, self.in_flight + self.waiting + self.held)

    def at_hand(self) -> int:
        """Requests here, and in other processes as far as they are shared."""
        here = self.in_flight + self.waiting + self.held
        return here if self.shared is None else here + self.shared.elsewhere(self.name)

    def check(self, tokens: int, now_s: float) -> None:
        """RequestError 429 if one more request of so many tokens is too much. Takes nothing."""
        if self.concurrency != math.inf and (at_hand := self.at_hand()) >= self.concurrency:
            raise refusal(
                429,
                KEY_CONCURRENCY,
                _BUSY_RETRY_S,
                f"the key {self.name!r} may have {self.concurrency} requests at a time, "
                f"and has {at_hand}",
            )
        requests = self.requests
        if requests is not None and (wait_s := requests.wait_s(1, now_s)):
            raise refusal(
                429,
                KEY_REQUESTS,
                wait_s,
                f"the key {self.name!r} may make {requests.per_min:g} requests per minute, "
                f"and has made them",
            )
        budget = self.tokens
        if budget is not None and (wait_s := budget.wait_s(tokens, now_s)):
            left = max(0, math.floor(budget.level(now_s)))
            raise refusal(
                429,
                KEY_TOKENS,
                wait_s,
                f"the key {self.name!r} may use {budget.per_min:g} tokens per minute: "
                f"{left} are left, this request asks for {tokens}",
            )

    def take(self, tokens: int, now_s: float) -> None:
        """A request of so many tokens was let in, or waits."""
        if self.requests is not None:
            self.requests.take(1, now_s)
        if self.tokens is not None:
            self.tokens.take(tokens, now_s)

    def is_idle(self, now_s: float) -> bool:
        """Whether a new one would be the same."""
        if self.in_flight or self.waiting or self.held:
            return False
        buckets = (self.requests, self.tokens)
        return all(bucket is None or bucket.level(now_s) >= bucket.per_min for bucket in buckets)

    def _bucket(self, per_min: int | None, number: int) -> Bucket | None:
        if not per_min or self._cells is None:
            return None
        cells, first = self._cells
        return Bucket(per_min, cells, first + number)


def refusal(status: int, cause: str, wait_s: float, message: str) -> RequestError:
    """The error of a limit, which says when to try again."""
    seconds = max(1, math.ceil(wait_s))
    return RequestError(
        status,
        f"{message}; try again in {seconds} s",
        headers={"Retry-After": str(seconds)},
        cause=cause,
    )
