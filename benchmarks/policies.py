"""Ways of choosing an engine: ours, and what it is compared with. Used by `affinity`.

The published algorithms are written anew from their descriptions, for blocks in place of
characters, with what they can see at its best: fresh figures, no delay.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence

from benchmarks.caches import BLOCK_BYTES, BLOCK_TOKENS, Engine, Request
from exaslurm.router.affinity import Affinity
from exaslurm.router.choose import choose


class _Policy:
    """``capacity``: blocks of an engine's cache."""

    def __init__(self, engines: Sequence[Engine], capacity: int, seed: int) -> None:
        self.engines = engines
        self.capacity = capacity
        self.rng = random.Random(seed)

    def sent(self, request: Request, engine: Engine) -> None:
        pass

    def least_loaded(self, engines: Sequence[Engine]) -> Engine:
        return min(engines, key=lambda engine: (engine.outstanding, self.rng.random()))


class Ours(_Policy):
    """The router's choice: affinity, or else the less loaded of two.

    ``routers``: so many that share nothing but the count of outstanding requests, each request
    reaching one of them at random. ``told``: whether they know how large the caches are.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        capacity: int,
        seed: int,
        *,
        routers: int = 1,
        told: bool = True,
    ) -> None:
        super().__init__(engines, capacity, seed)
        self.routers: list[Affinity[Engine]] = []
        for _ in range(routers):
            affinity: Affinity[Engine] = Affinity()
            affinity.retain(engines)
            if told:
                affinity.room = capacity * BLOCK_BYTES * len(engines) / routers
            self.routers.append(affinity)
        self.router = self.routers[0]

    def choose(self, request: Request) -> Engine:
        self.router = self.rng.choice(self.routers)
        engine = self.router.choose(request.hashes, self.rng)
        if engine is None:
            engine = choose(self.engines, (), self.rng)
        assert engine is not None
        return engine

    def sent(self, request: Request, engine: Engine) -> None:
        self.router.sent(request.hashes, engine)


class RoundRobin(_Policy):
    number = -1

    def choose(self, _: Request) -> Engine:
        self.number += 1
        return self.engines[self.number % len(self.engines)]


class PowerOfTwo(_Policy):
    def choose(self, _: Request) -> Engine:
        engine = choose(self.engines, (), self.rng)
        assert engine is not None
        return engine


class CacheAware(_Policy):
    """cache_aware of vllm-router and sglang-router (threshold 0.3, balance 64 and 1.5): the engine
    that was last sent the longest known beginning, if that is more than the threshold and the
    loads are balanced; else the least loaded one. (Their tree keeps 2^25 characters an engine,
    more than this trace has.)"""

    def __init__(self, engines: Sequence[Engine], capacity: int, seed: int) -> None:
        super().__init__(engines, capacity, seed)
        self.last: dict[int, Engine] = {}

    def choose(self, request: Request) -> Engine:
        loads = [engine.outstanding for engine in self.engines]
        if max(loads) - min(loads) > 64 and max(loads) > min(loads) * 1.5:
            return self.least_loaded(self.engines)
        known = 0
        while known < len(request.keys) and request.keys[known] in self.last:
            known += 1
        if known > 0.3 * len(request.keys):
            return self.last[request.keys[known - 1]]
        return self.least_loaded(self.engines)

    def sent(self, request: Request, engine: Engine) -> None:
        self.last.update(dict.fromkeys(request.keys, engine))


class LlmD(_Policy):
    """llm-d's default: the best sum of two scores. Prefix: share of the prompt's first 4,096 tokens
    (256 blocks of 16) that the engine was sent before, by an index per engine of its cache's size.
    Load: 0.5 without waiting requests, falling to 0 at 128 of them."""

    _BLOCKS = 256 * 16 // BLOCK_TOKENS

    def __init__(self, engines: Sequence[Engine], capacity: int, seed: int) -> None:
        super().__init__(engines, capacity, seed)
        self.index: dict[Engine, OrderedDict[int, None]] = {e: OrderedDict() for e in engines}

    def choose(self, request: Request) -> Engine:
        keys = request.keys[: self._BLOCKS]

        def score(engine: Engine) -> float:
            index = self.index[engine]
            known = 0
            while known < len(keys) and keys[known] in index:
                known += 1
            waiting = min(engine.waiting(request.at_s), 128)
            return known / len(keys) + 0.5 * (1 - waiting / 128)

        return max(self.engines, key=lambda engine: (score(engine), self.rng.random()))

    def sent(self, request: Request, engine: Engine) -> None:
        index = self.index[engine]
        for key in request.keys[: self._BLOCKS]:
            index[key] = None
            index.move_to_end(key)
        while len(index) > self.capacity:
            index.popitem(last=False)


class Greedy(_Policy):
    """Looks into every engine's cache: most blocks found, of those that were not given more than
    1.25 times the mean to compute so far; then the one that was given least."""

    def choose(self, request: Request) -> Engine:
        limit = 1.25 * sum(engine.blocks for engine in self.engines) / len(self.engines) + 1
        return max(
            (engine for engine in self.engines if engine.blocks <= limit),
            key=lambda engine: (engine.cache.found(request.keys), -engine.blocks),
        )


class GreedyByCost(_Policy):
    """Looks into every engine's cache and weighs blocks found against requests outstanding."""

    def choose(self, request: Request) -> Engine:
        return max(
            self.engines,
            key=lambda engine: engine.cache.found(request.keys) - 2 * engine.outstanding,
        )
