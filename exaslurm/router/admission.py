"""Whether a request may go to an engine now, has to wait, or is refused. Pure.

The limits of keys (so much a minute, so many at a time) are answered with 429 at once. What the
engines have no room for waits: for a free place of its model (``max_in_flight_per_replica`` times
the usable replicas) and of the router (``max_in_flight``), in the order of ``fairness``. A queue
that is full, or a wait that is over, is answered with 503. Both say when to try again.
"""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from exaslurm.core.limits import Limits
from exaslurm.keys.clients import KeyInfo
from exaslurm.router.errors import RequestError
from exaslurm.router.fairness import FairQueue, Lane
from exaslurm.router.key_use import (
    KEY_CONCURRENCY,
    KEY_REQUESTS,
    KEY_TOKENS,
    KeyUse,
    refusal,
)
from exaslurm.router.quotas import SharedQuotas

__all__ = ["Admission", "Entry", "Figures", "KeyFigures", "Limits", "ModelFigures"]

log = logging.getLogger(__name__)

# What a request costs besides its tokens, in tokens: requests without any are not free.
_BASE_COST: Final = 100
# Of the places to wait in, one model leaves 1/8 to others.
_KEPT_FOR_OTHERS: Final = 8
_UNKNOWN_RETRY_S: Final = 5
_MAX_RETRY_S: Final = 60
_DRAIN_MEMORY_S: Final = 5.0
_FORGET_EVERY_S: Final = 60.0
# In one sweep, so that the streams of others do not stall meanwhile.
_MOST_TIME_OUTS: Final = 500

# Why a request was refused, besides the reasons of ``key_use``: the ``cause`` of the error.
KEY_WAITING: Final = "key_waiting"
QUEUE_FULL: Final = "queue_full"
QUEUE_TIMEOUT: Final = "queue_timeout"
CAUSES: Final = (KEY_CONCURRENCY, KEY_REQUESTS, KEY_TOKENS, KEY_WAITING, QUEUE_FULL, QUEUE_TIMEOUT)


class Entry(Protocol):
    """A request that asks to be let in. ``admitted`` and ``refused`` are called, one of them and
    once, if ``enter`` made it wait; both may call back into the admission."""

    @property
    def key(self) -> KeyInfo: ...

    @property
    def model(self) -> str: ...

    @property
    def priority(self) -> int: ...

    def admitted(self) -> None: ...

    def refused(self, error: RequestError) -> None: ...


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """One served name. ``limit``: how many may be in flight now; None: no bound."""

    in_flight: int
    waiting: int
    limit: int | None


@dataclass(frozen=True, slots=True)
class KeyFigures:
    in_flight: int
    waiting: int
    held: int


@dataclass(frozen=True, slots=True)
class Figures:
    """Where all requests of this router are. ``refused`` counts by cause since the start."""

    in_flight: int
    waiting: int
    models: Mapping[str, ModelFigures]
    keys: Mapping[str, KeyFigures]
    refused: Mapping[str, int]


class _Model:
    """One served name."""

    __slots__ = ("capacity", "in_flight", "name", "queue", "room")

    def __init__(self, name: str) -> None:
        self.name = name
        self.capacity = -1
        self.room = math.inf
        self.in_flight = 0
        self.queue: FairQueue[_Waiter] = FairQueue()


class _Waiter:
    """A request in a queue."""

    __slots__ = ("deadline_s", "entry", "lane", "model", "owner", "tokens")

    lane: Lane[_Waiter]

    def __init__(
        self, entry: Entry, model: _Model, owner: KeyUse, tokens: int, deadline_s: float
    ) -> None:
        self.entry = entry
        self.model = model
        self.owner = owner
        self.tokens = tokens
        self.deadline_s = deadline_s


_InFlight = tuple[_Model, KeyUse, int, "Lane[_Waiter] | None"]


class Admission:
    """The one gate of a router process. ``clock``: monotonic seconds. ``quotas``: what the
    processes of this host share (its clock must be theirs). ``processes``: of so many that serve
    on the same port this is one; each takes its share of ``limits``.

    An entry is known by its identity; its key, model and priority are read by ``enter`` only.
    """

    def __init__(
        self,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        quotas: SharedQuotas | None = None,
        processes: int = 1,
    ) -> None:
        self._limits = limits.of_one(processes)
        self._processes = processes
        self._quotas = quotas
        self._clock = clock
        self._max_in_flight = self._limits.max_in_flight
        self._models: dict[str, _Model] = {}
        self._owners: dict[str, KeyUse] = {}
        self._in_flight: dict[Entry, _InFlight] = {}
        # Those that wait elsewhere, for a replica to be started (see ``hold``).
        self._held: dict[Entry, tuple[KeyUse, int]] = {}
        # In the order they came, which is that of their deadlines too.
        self._waiting: OrderedDict[Entry, _Waiter] = OrderedDict()
        # Models that somebody waits for; the one that was served last comes last.
        self._queued: OrderedDict[_Model, None] = OrderedDict()
        self._letting_in = False
        self._again = False
        self._refused = dict.fromkeys(CAUSES, 0)
        self._swept_s = self._forgot_s = clock()
        self._drained = 0
        self._drain_per_s = 0.0

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def enter(self, entry: Entry, tokens: int, capacity: int) -> bool:
        """True: go now. False: wait until ``admitted()`` or ``refused()`` is called.

        ``tokens``: what the request may use, as far as known: it is reserved of the key's tokens
        per minute until ``leave`` tells the true figure. ``capacity``: how many replicas take
        requests for the model now. RequestError 429 or 503, with Retry-After.
        """
        key = entry.key
        owner = self._owners.get(key.name)
        if owner is None or owner.key is not key:
            owner = self._owner(key)
        was_held = bool(self._held) and entry in self._held
        if owner.limited and not was_held:
            self._check(owner, tokens)
        model = self._models.get(entry.model)
        if model is None:
            model = self._models[entry.model] = _Model(entry.model)
        if model.capacity != capacity:
            self._resize(model, capacity)
        if model.in_flight >= model.room or len(self._in_flight) >= self._max_in_flight:
            try:
                self._check_room(model, owner, was_held=was_held)
            except RequestError:
                self._give_up(entry)
                raise
            self._wait(entry, model, owner, tokens)
            admitted = False
        else:
            model.in_flight += 1
            owner.in_flight += 1
            self._in_flight[entry] = (model, owner, tokens, None)
            admitted = True
        if was_held:
            del self._held[entry]
            owner.held -= 1
        elif owner.limited:
            owner.take(tokens, self._clock())
            owner.publish()
        return admitted

    def held_of(self, key: KeyInfo) -> int:
        """How many requests of a key are held."""
        owner = self._owners.get(key.name)
        return 0 if owner is None else owner.held

    def hold(self, entry: Entry, tokens: int) -> None:
        """It waits outside of the queues here, for a replica to be started. For the limits of its
        key it counts as it will when it enters, and is not asked again then. RequestError 429 if
        it is too much now. It ends with ``enter`` or ``leave``."""
        left = self._in_flight.pop(entry, None)
        if left is not None:  # the replica that it was for has gone
            model, owner, tokens, lane = left
            model.in_flight -= 1
            owner.in_flight -= 1
            if lane is not None:
                lane.settle(-tokens)
        else:
            owner = self._owner(entry.key)
            if owner.limited:
                self._check(owner, tokens)
            most = self._limits.max_waiting_per_key
            if most is not None:
                why = f"no replica of {entry.model!r} serves now"
                self._check_waiting_of(owner, most, why)
            if owner.limited:
                owner.take(tokens, self._clock())
        owner.held += 1
        owner.publish()
        self._held[entry] = (owner, tokens)
        if left is not None and self._waiting:
            self._let_in()

    def leave(self, entry: Entry, used_tokens: int | None) -> None:
        """A request is over, however it ended; nothing happens if it is not known any more.

        ``used_tokens``: prompt and output as the engine counted them, 0 if no engine worked on
        it; None if nobody knows: then what was reserved counts. Lets in who waits.
        """
        left = self._in_flight.pop(entry, None)
        if left is None:
            self._give_up(entry)
            return
        model, owner, tokens, lane = left
        model.in_flight -= 1
        owner.in_flight -= 1
        if owner.shared is not None:
            owner.publish()
        if used_tokens is not None and used_tokens != tokens:
            if owner.tokens is not None:
                owner.tokens.take(used_tokens - tokens, self._clock())
            if lane is not None:
                lane.settle(used_tokens - tokens)
        if self._waiting:
            self._let_in()

    def capacity_changed(self, model: str, capacity: int) -> None:
        """So many replicas take requests for a served name now. Lets in who waits for it."""
        known = self._models.get(model)
        if known is not None and known.capacity != capacity:
            self._resize(known, capacity)

    def capacities_changed(self, capacities: Mapping[str, int]) -> None:
        """The same for all served names there are; a name that is not among them is gone."""
        for name in list(self._models):
            self.capacity_changed(name, capacities.get(name, 0))

    def sweep(self, now_s: float) -> None:
        """Refuse those who have waited too long. To be called a few times a second."""
        self._measure_drain(now_s)
        for _ in range(_MOST_TIME_OUTS):
            entry, waiter = next(iter(self._waiting.items()), (None, None))
            if entry is None or waiter is None or waiter.deadline_s > now_s:
                break
            error = self._timed_out(waiter)
            self._give_up(entry)
            self._refused[QUEUE_TIMEOUT] += 1
            _tell(entry, error)
        if self._quotas is not None:
            for owner in self._owners.values():
                if owner.alone and not owner.join():
                    break  # somebody else is at it: the next time
        if now_s - self._forgot_s >= _FORGET_EVERY_S:
            self._forgot_s = now_s
            self._forget_idle(now_s)

    def figures(self) -> Figures:
        """A snapshot, for pages and metrics."""
        return Figures(
            in_flight=len(self._in_flight),
            waiting=len(self._waiting),
            models={
                name: ModelFigures(
                    model.in_flight,
                    model.queue.size,
                    None if model.room == math.inf else int(model.room),
                )
                for name, model in self._models.items()
            },
            keys={
                name: KeyFigures(owner.in_flight, owner.waiting, owner.held)
                for name, owner in self._owners.items()
            },
            refused=dict(self._refused),
        )

    def _owner(self, key: KeyInfo) -> KeyUse:
        """What is known of a key, whose limits are these now."""
        owner = self._owners.get(key.name)
        if owner is None:
            owner = self._owners[key.name] = KeyUse(key, self._quotas)
        elif owner.key is not key:
            owner.follow(key)
        return owner

    def _check(self, owner: KeyUse, tokens: int) -> None:
        try:
            owner.check(tokens, self._clock())
        except RequestError as error:
            self._refused[error.cause] += 1
            raise

    def _wait(self, entry: Entry, model: _Model, owner: KeyUse, tokens: int) -> None:
        """Put a request into its queue."""
        waiter = _Waiter(entry, model, owner, tokens, self._clock() + self._limits.wait_s)
        waiter.lane = model.queue.put(waiter, owner.name, entry.priority, tokens + _BASE_COST)
        owner.waiting += 1
        self._waiting[entry] = waiter
        self._queued[model] = None

    def _check_waiting_of(self, owner: KeyUse, most: int, why: str) -> None:
        """RequestError if one key has so many waiting, wherever they do."""
        waiting = owner.waiting + owner.held
        if waiting >= most:
            raise self._refusal(
                429,
                KEY_WAITING,
                self._retry_s(),
                f"the key {owner.name!r} may have {most} requests waiting, and has {waiting}; "
                f"{why}",
            )

    def _check_room(self, model: _Model, owner: KeyUse, *, was_held: bool) -> None:
        """RequestError if one more may not wait. One that was held had its share there, and has
        waited for long: only where there is no room at all is it refused."""
        limits, waiting = self._limits, len(self._waiting)
        most = limits.max_waiting_per_key
        if most is not None and not was_held:
            self._check_waiting_of(owner, most, _busy(model))
        # A key may take half of what is free, so that a flood of one always leaves room for
        # others, and theirs for more (dynamic thresholds, as switches share their buffers).
        if waiting >= limits.max_waiting or (
            most is None and not was_held and owner.waiting >= limits.max_waiting - waiting
        ):
            raise self._refusal(
                503,
                QUEUE_FULL,
                self._retry_s(),
                f"too many requests wait: {waiting} of at most {limits.max_waiting}, "
                f"{owner.waiting} of the key {owner.name!r}; {_busy(model)}",
            )
        # Nor may those who wait for one model, whoever they are, leave no room for the others.
        most = limits.max_waiting - limits.max_waiting // _KEPT_FOR_OTHERS
        if len(self._models) > 1 and not was_held and model.queue.size >= most:
            raise self._refusal(
                503,
                QUEUE_FULL,
                self._retry_s(),
                f"too many requests wait for {model.name!r}: {model.queue.size} of at most {most}; "
                f"{_busy(model)}",
            )

    def _give_up(self, entry: Entry) -> None:
        """It waits no longer, if it did, here or elsewhere; its tokens are given back."""
        waiter = self._waiting.pop(entry, None)
        if waiter is not None:
            waiter.model.queue.remove(waiter, waiter.lane)
            owner, tokens = waiter.owner, waiter.tokens
            owner.waiting -= 1
            if not waiter.model.queue.size:
                del self._queued[waiter.model]
        elif entry in self._held:
            owner, tokens = self._held.pop(entry)
            owner.held -= 1
        else:
            return
        owner.publish()
        if owner.tokens is not None:
            owner.tokens.take(-tokens, self._clock())

    def _let_in(self) -> None:
        """Let in those who wait, as far as there is room.

        Who is let in may leave within the call: that is noted, and seen to by the loop that runs
        already, or a thousand such would be a thousand calls deep.
        """
        self._again = True
        if self._letting_in:
            return
        self._letting_in = True
        try:
            while self._again:
                self._again = False
                while len(self._in_flight) < self._max_in_flight and (model := self._next()):
                    self._admit(model)
        finally:
            self._letting_in = False

    def _next(self) -> _Model | None:
        """The model whose queue is served next: the highest priority, then in turn."""
        best, highest = None, 0
        for model in self._queued:
            if model.in_flight < model.room:
                priority = model.queue.top
                if best is None or priority > highest:
                    best, highest = model, priority
        return best

    def _admit(self, model: _Model) -> None:
        waiter = model.queue.pop()
        entry, owner = waiter.entry, waiter.owner
        del self._waiting[entry]
        if model.queue.size:
            self._queued.move_to_end(model)
        else:
            del self._queued[model]
        owner.waiting -= 1
        owner.in_flight += 1
        model.in_flight += 1
        self._in_flight[entry] = (model, owner, waiter.tokens, waiter.lane)
        self._drained += 1
        try:
            entry.admitted()
        except Exception:  # whose request ended has no part in it, nor have those who wait
            log.exception("a request that was let in failed")

    def _resize(self, model: _Model, capacity: int) -> None:
        model.capacity = capacity
        each = self._limits.max_in_flight_per_replica
        if each is not None:
            model.room = float(-(-each * capacity // self._processes))
            if model.queue.size:
                self._let_in()

    def _measure_drain(self, now_s: float) -> None:
        """How many waiting requests are let in per second, lately."""
        passed_s = now_s - self._swept_s
        if passed_s <= 0:
            return
        weight = 1 - math.exp(-passed_s / _DRAIN_MEMORY_S)
        self._drain_per_s += (self._drained / passed_s - self._drain_per_s) * weight
        self._drained = 0
        self._swept_s = now_s

    def _retry_s(self) -> float:
        """When what waits now will be gone, at the present pace."""
        if self._drain_per_s <= 0:
            return _UNKNOWN_RETRY_S
        return min(len(self._waiting) / self._drain_per_s, _MAX_RETRY_S)

    def _timed_out(self, waiter: _Waiter) -> RequestError:
        return refusal(
            503,
            QUEUE_TIMEOUT,
            self._retry_s(),
            f"no engine was free within {self._limits.wait_s:g} s; {_busy(waiter.model)}, "
            f"{len(self._waiting)} requests wait",
        )

    def _refusal(self, status: int, cause: str, wait_s: float, message: str) -> RequestError:
        self._refused[cause] += 1
        return refusal(status, cause, wait_s, message)

    def _forget_idle(self, now_s: float) -> None:
        """Keys and models come and go; what is idle is not remembered."""
        gone = [name for name, owner in self._owners.items() if owner.is_idle(now_s)]
        for name in gone:
            del self._owners[name]
        if gone and self._quotas is not None:
            self._quotas.leave(gone)
        for model in list(self._models.values()):
            if not model.in_flight and not model.queue.size and model.capacity <= 0:
                del self._models[model.name]


def _busy(model: _Model) -> str:
    if model.room == math.inf:
        return "the router is at its limit of requests in flight"
    return f"{model.in_flight} of at most {model.room:g} requests of {model.name!r} are in flight"


def _tell(entry: Entry, error: RequestError) -> None:
    try:
        entry.refused(error)
    except Exception:
        log.exception("a request that was refused failed")
