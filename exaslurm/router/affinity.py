"""Prefix affinity bounded by load: which replica has the beginning of this prompt in its cache.

A few candidates are compared, never all replicas: those known to have been sent the longest known
beginning of the prompt, those that the prompt belongs to by its hash (so that routers that share
nothing agree on prompts they see for the first time), and two at random (so that a popular prefix
spreads as far as its load asks for). Each candidate costs what it would have to compute, plus its
load, plus what it was given beyond its share so far: caches that turn over at one speed forget at
one age, and then many small caches hold nearly what one pooled cache would.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import Any, Final, Generic, Protocol, TypeVar

from exaslurm.router.blocks import EXTENTS
from exaslurm.router.prefixes import CAPACITY, Found, Prefixes, Shared
from exaslurm.router.ring import Ring
from exaslurm.router.weights import UNWANTED


class Loaded(Protocol):
    """What the choice looks at. ``outstanding``: requests that this router sent there and that are
    not finished; ``penalty``: what else weighs on it, in requests (finite); ``closed``: whether it
    may be chosen now (its breaker is closed)."""

    outstanding: int
    penalty: float
    closed: bool

    @property
    def ident(self) -> str:
        """Its name, the same in every router."""


L = TypeVar("L", bound=Loaded)

LOAD_FACTOR: Final = 1.25
LOAD_SLACK: Final = 4.0
"""No replica is chosen for affinity whose load is above LOAD_FACTOR x mean + LOAD_SLACK."""

# Costs are in prompts of the usual size; chosen on a trace of real conversations
# (benchmarks/affinity), around which the result is flat.
_LOAD_COST: Final = 0.1  # of one request at the replica
_SHARE_COST: Final = 0.05  # of a prompt's worth of work beyond the mean
_STRANGER_COST: Final = 0.5  # of a replica that the hash does not name: others would not find it
_NEXT_HOME_COST: Final = 0.25

# A replica that has the whole prompt gets it at once if its load is about the mean, and what it was
# given beyond its share costs less than the prompt would elsewhere: hardly another could be
# cheaper. Of one that is idle nobody asks what the mean is: among thousands, what was not looked at
# of late is far away in memory.
_IDLE_SLACK: Final = 1.0
_HORIZON: Final = 200.0  # prompts per replica after which its account has faded to 1/e
_SMOOTHING: Final = 1 / 16
_LONGEST_WALK: Final = 32  # points of the ring
_RESCALE: Final = 1e9
_SPREAD: Final = 0x9E3779B97F4A7C15  # odd; decorrelates the second home from the first
_WORD: Final = (1 << 64) - 1


class _Engine(Generic[L]):
    """A replica's account. ``work``: bytes of prompt it was given to compute, later ones
    weighing more. ``target`` None: it is gone, though the index may still name it."""

    __slots__ = ("target", "work")

    def __init__(self, target: L, work: float) -> None:
        self.target: L | None = target
        self.work = work


class Affinity(Generic[L]):
    """The prefix affinity of one pool of interchangeable replicas. Not for several threads.

    ``capacity``: entries of the index. ``extents``: size in bytes, or any unit, of the first 0,
    1, 2, ... blocks of a prompt. ``room``: how much prompt all caches of the pool together hold,
    in the same unit, None if it is not known; what they must have forgotten is forgotten here
    too, and not counted on.
    """

    def __init__(self, capacity: int = CAPACITY, extents: Sequence[int] = EXTENTS) -> None:
        self.room: float | None = None
        self._extents = extents
        self._engines: dict[L, _Engine[L]] = {}
        self._ring: Ring[_Engine[L]] = Ring()
        self._prefixes: Prefixes[_Engine[L]] = Prefixes(capacity)
        self._filled = 0.0  # put into the caches since the index aged
        self._mean_load = 0.0
        self._usual = float(extents[1])  # bytes that a prompt usually leaves to compute
        self._unit = 1.0  # what a byte weighs in the accounts now: they fade as it grows
        self._growth = 1.0  # of the unit, per prompt
        self._work = 0.0
        self._found: Found[_Engine[L]] | None = None  # of the prompt chosen for last
        # That one was chosen because it has the whole of this prompt.
        self._last: _Engine[L] | None = None
        self._whole: Sequence[int] = ()

    @property
    def entries(self) -> int:
        """Entries of the index now."""
        return len(self._prefixes)

    def retain(self, targets: Collection[L]) -> None:
        """``targets`` are the pool's replicas now, usable at the moment or not: forget others.

        O(number of replicas); nothing to call per request.
        """
        for target in self._engines.keys() - set(targets):
            self._drop(target)
        for target in targets:
            if target not in self._engines:
                self._add(target)
        self._growth = 1 + 1 / (_HORIZON * max(1, len(self._engines)))

    def forget(self, target: L) -> None:
        """``target`` was restarted: its cache is empty."""
        if target in self._engines:
            self._drop(target)
            self._add(target)

    def _add(self, target: L) -> None:
        """A new replica's account starts at the mean, or it would be given everything."""
        share = self._work / len(self._engines) if self._engines else 0.0
        engine = _Engine(target, share)
        self._work += share
        self._engines[target] = engine
        self._ring.add(target.ident, engine)

    def _drop(self, target: L) -> None:
        engine = self._engines.pop(target)
        self._ring.remove(target.ident, engine)
        self._work -= engine.work
        engine.target = None

    def choose(
        self,
        keys: Sequence[int],
        rng: random.Random,
        tried: Collection[L] = (),
        fits: Callable[[L], bool] | None = None,
    ) -> L | None:
        """The replica for a prompt of the blocks ``keys``: none of ``tried``, and one that
        ``fits``, if only some can serve it.

        None: affinity has nothing to say; take the less loaded of two.
        """
        if not keys or not self._engines:
            return None
        owner = self._owner(self._prefixes.last(keys[-1]), rng)
        if owner is not None:
            # The whole prompt is known: the usual case of what is asked again.
            home: Any = owner.target
            over = owner.work - self._work / len(self._engines)
            if (
                home is not None
                and home.closed
                and home not in tried
                and over * _SHARE_COST <= self._extents[len(keys)] * self._unit
                and (fits is None or fits(home))
            ):
                load = home.outstanding + home.penalty
                if load > _IDLE_SLACK:
                    self._sample(rng)
                if load <= self._mean_load + _IDLE_SLACK:
                    self._found = None
                    self._last, self._whole = owner, keys
                    return home  # type: ignore[no-any-return]
        self._found = found = self._prefixes.find(keys)
        _, known, entry, common = found
        count = len(keys)
        usual = self._usual
        whole = self._extents[count] / usual
        rest = whole - self._extents[known] / usual
        options: list[tuple[_Engine[L], float]] = []
        if isinstance(entry, _Engine):
            if entry.target is not None:
                options.append((entry, rest))
        elif entry is not None:
            if entry.owners is not None:
                two = _two(entry.owners, rng)
                options += [(owner, rest) for owner in two if owner.target is not None]
            elif common >= count:
                return None
            else:
                whole = rest

        points, items = self._ring.points, self._ring.items
        size = len(points)
        key = keys[common] if common < count else keys[-1]
        index = self._sample(rng)
        options += (
            (items[bisect_right(points, key) - size], whole),
            (items[bisect_right(points, key * _SPREAD & _WORD) - size], whole + _NEXT_HOME_COST),
            (items[index], whole + _STRANGER_COST),
            (items[index - size // 2], whole + _STRANGER_COST),
        )
        best = self._cheapest(options)
        while best is not None and (
            not best.closed or best in tried or (fits is not None and not fits(best))
        ):
            options = [option for option in options if option[0].target is not best]
            best = self._cheapest(options)
        return best

    def stay(
        self,
        key: int,
        rng: random.Random,
        tried: Collection[L] = (),
        fits: Callable[[L], bool] | None = None,
    ) -> L | None:
        """The replica of a session whose name has the 64-bit hash ``key``: the same one in every
        router, as long as its load allows it, then the next. For the rest as `choose`."""
        if not self._engines:
            return None
        self._sample(rng)
        points, items = self._ring.points, self._ring.items
        first = bisect_right(points, key)
        limit = self._mean_load * LOAD_FACTOR + LOAD_SLACK
        for index in range(first, first + _LONGEST_WALK):
            target = items[index % len(items)].target
            if (
                target is not None
                and target.closed
                and target not in tried
                and target.outstanding + target.penalty <= limit
                and (fits is None or fits(target))
            ):
                return target
        return None

    @staticmethod
    def _owner(
        entry: _Engine[L] | Shared[_Engine[L]] | None, rng: random.Random
    ) -> _Engine[L] | None:
        """One of those that have the beginning of this entry: of two the one given less."""
        if not isinstance(entry, Shared):
            return entry
        if entry.owners is None:
            return None
        two = _two(entry.owners, rng)
        return two[0] if two[0].work <= two[-1].work else two[-1]

    def _sample(self, rng: random.Random) -> int:
        """A random place on the ring; the load there is one more estimate of the mean."""
        items = self._ring.items
        index = int(rng.random() * len(items))
        target = items[index].target
        if target is not None and target.closed and target.penalty < UNWANTED:
            load = target.outstanding + target.penalty
            self._mean_load += (load - self._mean_load) * _SMOOTHING
        return index

    def _cheapest(self, options: list[tuple[_Engine[L], float]]) -> L | None:
        """The best of these engines, given with what the prompt would cost there."""
        limit = self._mean_load * LOAD_FACTOR + LOAD_SLACK
        per_work = _SHARE_COST / (self._usual * self._unit)
        best: L | None = None
        least = inf
        for engine, cost in options:
            target = engine.target
            load = target.outstanding + target.penalty  # type: ignore[union-attr]
            total = cost + load * _LOAD_COST + engine.work * per_work
            if total < least and load <= limit:
                best, least = target, total
        return best

    def sent(self, keys: Sequence[int], target: L) -> None:
        """A prompt of the blocks ``keys`` goes to ``target``, chosen here or elsewhere."""
        engine = self._last
        if engine is None or engine.target is not target:
            engine = self._engines.get(target)
        elif keys is self._whole:
            self._charge(engine, len(keys), len(keys))
            return
        if not keys or engine is None:
            return
        last = self._prefixes.last(keys[-1])
        if last is engine or (last is not None and _has(last, engine)):
            self._charge(engine, len(keys), len(keys))  # it has all of it, and that is known
            return
        found, self._found = self._found, None
        if found is None or found[0] is not keys:
            found = self._prefixes.find(keys)
        self._charge(engine, found[1] if _has(found[2], engine) else 0, len(keys))
        if self.room is not None and self._filled >= self.room:
            self._filled = 0.0
            self._prefixes.age()
        self._prefixes.record(found, engine)

    def _charge(self, engine: _Engine[L], cached: int, count: int) -> None:
        """The rest that fills no block costs about one more."""
        size = self._extents[count] - self._extents[cached] + self._extents[1]
        self._usual += (size - self._usual) * _SMOOTHING
        self._filled += size
        work = size * self._unit
        engine.work += work
        self._work += work
        self._unit *= self._growth
        if self._unit > _RESCALE:
            for each in self._engines.values():
                each.work /= self._unit
            self._work /= self._unit
            self._unit = 1.0


def _has(entry: _Engine[L] | Shared[_Engine[L]] | None, engine: _Engine[L]) -> bool:
    """Whether ``engine`` has the beginning of this entry."""
    if isinstance(entry, Shared):
        return entry.owners is None or engine in entry.owners
    return entry is engine


def _two(engines: tuple[_Engine[L], ...], rng: random.Random) -> tuple[_Engine[L], ...]:
    """At most two of them, at random."""
    count = len(engines)
    if count <= 2:
        return engines
    first = int(rng.random() * count)
    return engines[first], engines[first - 1]
