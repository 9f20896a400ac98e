"""Replicas from a list of engines, which are asked how they are.

Every check is one connection with two short questions (``/health``, ``/metrics``). Checks are
spread evenly: an engine is asked every ``EVERY_S``, or more seldom where there are so many that
all of them together would be asked more than ``CHECKS_PER_S`` times a second, because every
question costs the engine's API server time that requests need. Checks that are due within the same
quarter of a second are made together: in a busy router one by itself finds nothing that it needs in
the processor's caches, and takes twice as long. Engines that take no requests are asked every
second, so that one that comes back is used again at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import operator
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from exaslurm.core.cell import EngineLoad
from exaslurm.registry import engines_file
from exaslurm.registry.changes import changes
from exaslurm.registry.engines_file import EnginesFile, UnusableKeys
from exaslurm.registry.lane import Lane
from exaslurm.registry.replica import Listener, LoadListener, Replica
from exaslurm.registry.watched import Watched
from exaslurm.util.iothread import IoThread

log = logging.getLogger(__name__)

EVERY_S = 10.0
CHECKS_PER_S = 64.0
TROUBLED_EVERY_S = 1.0
TROUBLED_PER_S = 64.0
MISCONFIGURED_EVERY_S = 10.0
# Hung engines hold their places until they time out; those of the others are their own.
_AT_ONCE = 128
_TROUBLED_AT_ONCE = 64
_TICK_S = 0.05
_TOGETHER_S = 0.25
_PUBLISH_EVERY_S = 0.25
_NEVER = float("-inf")
_LOGGED_ONE_BY_ONE = 8

T = TypeVar("T")


class PolledSource:
    """A ``ReplicaSource`` over a list of engines. Used inside one event loop.

    ``pollers``: how many processes ask these engines; each asks the more seldom. The file is read
    again when it changes.
    """

    def __init__(
        self,
        engines: EnginesFile,
        *,
        pollers: int = 1,
        files: IoThread | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._file = engines
        self._key_files = engines.key_files
        self._files = files
        self._clock = clock
        self._rng = rng or random.Random()
        self._pollers = pollers
        self._watched = {engine.id: Watched(engine) for engine in engines.engines}
        self._usual = Lane(_AT_ONCE)
        self._troubled = Lane(_TROUBLED_AT_ONCE)
        self._in_trouble = 0
        self._listeners: list[Listener] = []
        self._load_listeners: list[LoadListener] = []
        self._loads: dict[str, EngineLoad] = {}
        self._shown: tuple[Replica, ...] = ()
        self._published_s = float("-inf")
        self._publishing: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wake_s = 0.0
        self._dirty = True
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = False
        self._trouble: str | None = None
        self._show()

    # What a router asks for.

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)
        listener(self._shown)

    def subscribe_loads(self, listener: LoadListener) -> None:
        """``listener`` is called with the figures of each check that gave some, several at once."""
        self._load_listeners.append(listener)

    def recheck(self, replica: str) -> None:
        """Ask this engine now, because requests to it failed."""
        watched = self._watched.get(replica)
        now_s = self._clock()
        if watched is not None and self._running and self._ask_soon(watched, now_s):
            self._wake()

    def _ask_soon(self, watched: Watched, now_s: float) -> bool:
        """Whether that takes a check that was not due yet."""
        if watched.checking:  # what it says may have been overtaken
            watched.ask_again = True
            return False
        if watched.due_s <= now_s:
            return False
        self._troubled.add(watched, now_s)
        return True

    @property
    def replicas(self) -> tuple[Replica, ...]:
        return self._shown

    @property
    def every_s(self) -> float:
        """Seconds between two checks of an engine that takes requests."""
        return max(EVERY_S, len(self._watched) / CHECKS_PER_S) * self._pollers

    def describe(self) -> Mapping[str, Any]:
        states: dict[str, int] = {}
        for replica in self._shown:
            states[replica.state] = states.get(replica.state, 0) + 1
        return {
            "kind": "engines",
            "file": str(self._file.path) if self._file.path else None,
            "engines": len(self._watched),
            "states": states,
            "check_every_s": round(self.every_s, 1),
            "trouble": self._trouble,
        }

    # The life of it.

    async def run(self) -> None:
        """Ask until cancelled. Nothing waits for this: each engine is used as soon as it has
        answered."""
        self._running = True
        now_s = self._clock()
        for watched in self._watched.values():
            self._usual.add(watched, now_s)
        try:
            self._wake()
            await self._follow_file()
        finally:
            self._running = False
            for timer in (self._timer, self._publishing):
                if timer is not None:
                    timer.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _wake(self) -> None:
        """Start the checks that are due, and see when the next one is."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._running:
            return
        now_s = self._clock()
        loop = asyncio.get_running_loop()
        for lane in (self._troubled, self._usual):
            while (watched := lane.pop_due(now_s)) is not None:
                lane.free -= 1
                watched.checking = True
                task = loop.create_task(self._check(watched, lane))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        self._arm(now_s)

    def _arm(self, now_s: float) -> None:
        nexts = [lane.next_due_s() for lane in (self._troubled, self._usual)]
        soonest_s = min((due_s for due_s in nexts if due_s is not None), default=None)
        if soonest_s is None:
            return
        soonest_s = max(soonest_s, now_s + _TICK_S)
        if self._timer is not None:
            if self._wake_s <= soonest_s:
                return
            self._timer.cancel()
        self._wake_s = soonest_s
        self._timer = asyncio.get_running_loop().call_later(soonest_s - now_s, self._wake)

    async def _check(self, watched: Watched, lane: Lane) -> None:
        before, was_troubled = watched.replica, watched.in_trouble
        try:
            await watched.check()
        except Exception:  # one engine must not end the checks of all others
            log.exception("checking engine %s", watched.engine.id)
        finally:
            watched.checking = False
            lane.free += 1
        if self._watched.get(watched.engine.id) is not watched:
            return  # it has left the list meanwhile
        self._in_trouble += watched.in_trouble - was_troubled
        self._schedule(watched)
        if watched.load is not None:
            self._loads[watched.engine.id] = watched.load
        if watched.replica is not before:
            self._dirty = True
            self._publish_soon()
        elif watched.load is not None and self._publishing is None:
            self._publishing = self._later(_PUBLISH_EVERY_S)
        self._arm(self._clock())

    def _schedule(self, watched: Watched) -> None:
        now_s = self._clock()
        jitter = self._rng.uniform(0.9, 1.1)
        if watched.ask_again:
            watched.ask_again = False
            self._troubled.add(watched, now_s)
        elif watched.misconfigured:
            self._usual.add(watched, now_s + MISCONFIGURED_EVERY_S * jitter)
        elif watched.in_trouble:
            every_s = max(TROUBLED_EVERY_S, self._in_trouble * self._pollers / TROUBLED_PER_S)
            self._troubled.add(watched, now_s + every_s * self._rng.uniform(0.8, 1.0))
        elif watched.spread:
            watched.spread = False
            self._usual.add(watched, _together(now_s + self.every_s * self._rng.random()))
        else:
            self._usual.add(watched, _together(now_s + self.every_s * jitter))

    # What the listeners are told.

    def _publish_soon(self) -> None:
        """At once, unless something was told just before."""
        wait_s = self._published_s + _PUBLISH_EVERY_S - self._clock()
        if wait_s <= 0:
            self._publish()
        elif self._publishing is None:
            self._publishing = self._later(wait_s)

    def _later(self, wait_s: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(wait_s, self._publish)

    def _publish(self) -> None:
        if self._publishing is not None:
            self._publishing.cancel()
            self._publishing = None
        self._published_s = self._clock()
        if self._dirty and self._show():
            for listener in self._listeners:
                _tell(listener, self._shown)
        if self._loads:
            loads, self._loads = self._loads, {}
            for load_listener in self._load_listeners:
                _tell(load_listener, loads)

    def _show(self) -> bool:
        """Whether ``_shown`` has changed."""
        before = self._shown
        self._dirty = False
        self._shown = tuple(watched.replica for watched in self._watched.values())
        if len(before) == len(self._shown) and all(map(operator.is_, before, self._shown)):
            return False
        _log_changes(before, self._shown)
        return True

    # The file.

    async def _follow_file(self) -> None:
        path = self._file.path
        if path is None:
            await asyncio.get_running_loop().create_future()
            return
        files = self._files or IoThread("engines file")
        reads = changes(
            path, files, engines_file.load, lambda: self._key_files, known=self._file.looks
        )
        async for fresh in reads:
            if isinstance(fresh, EnginesFile):
                self._key_files = fresh.key_files
                self._note(None)
                if fresh != self._file:
                    self._take_file(fresh)
            else:
                if isinstance(fresh, UnusableKeys):
                    self._key_files = fresh.key_files
                self._note(str(fresh))

    def _take_file(self, fresh: EnginesFile) -> None:
        """What is known of an engine stays with its address."""
        before = self._watched
        gone = {watched.engine.url: watched for watched in before.values()}
        self._file = fresh
        self._watched = {}
        now_s = self._clock()
        for engine in fresh.engines:
            watched = gone.pop(engine.url, None)
            if watched is None:
                watched = Watched(engine)
                self._usual.add(watched, now_s)
            elif watched.engine != engine and watched.describe(engine):
                self._ask_soon(watched, now_s)
            self._watched[engine.id] = watched
        for watched in gone.values():
            watched.due_s = _NEVER
        for ident, watched in before.items():
            if self._watched.get(ident) is not watched:
                self._loads.pop(ident, None)
        self._dirty = True
        self._in_trouble = sum(watched.in_trouble for watched in self._watched.values())
        self._publish_together(now_s)
        self._wake()

    def _publish_together(self, now_s: float) -> None:
        """In a moment, so that a list of which all is new is not told before its engines have
        answered."""
        if self._publishing is not None:
            self._publishing.cancel()
        self._published_s = now_s
        self._publishing = self._later(_PUBLISH_EVERY_S)

    def _note(self, trouble: str | None) -> None:
        if trouble is not None and trouble != self._trouble:
            log.warning("going on with the engines known so far: %s", trouble)
        self._trouble = trouble


def _together(due_s: float) -> float:
    return math.ceil(due_s / _TOGETHER_S) * _TOGETHER_S


def _tell(listener: Callable[[T], None], what: T) -> None:
    try:
        listener(what)
    except Exception:  # it must not end the checks
        log.exception("telling a router what is known of engines")


def _log_changes(before: Sequence[Replica], after: Sequence[Replica]) -> None:
    known = {replica.id: replica for replica in before}
    changed = [new for new in after if (old := known.get(new.id)) and old.state != new.state]
    for replica in changed[:_LOGGED_ONE_BY_ONE]:
        level = logging.INFO if replica.takes_requests else logging.WARNING
        cause = f": {replica.cause}" if replica.cause else ""
        log.log(level, "engine %s is %s%s", replica.id, replica.state, cause)
    if len(changed) > _LOGGED_ONE_BY_ONE or not known:
        usable = sum(replica.takes_requests for replica in after)
        log.info("%d of %d engines take requests", usable, len(after))
