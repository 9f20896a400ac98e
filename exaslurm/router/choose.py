"""Which replica gets a request: the less loaded one of two taken at random. Pure.

Looking at every replica is what makes routers slow at thousands of them; two random ones give
nearly the same balance, and no herd runs to the replica that looked idle a moment ago.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Protocol, TypeVar


class Loaded(Protocol):
    """What the choice looks at. ``outstanding``: requests sent there and not finished."""

    @property
    def outstanding(self) -> int: ...

    @property
    def node(self) -> str: ...


L = TypeVar("L", bound=Loaded)

_SAMPLES = 8


def choose(candidates: Sequence[L], tried: Collection[L], rng: random.Random) -> L | None:
    """One of ``candidates`` that is not in ``tried``; None if there is none.

    The time does not depend on the number of candidates, but for a second attempt that finds
    hardly anything left.
    """
    count = len(candidates)
    if count == 0:
        return None
    if tried:
        return _choose_again(candidates, tried, rng)
    if count == 1:
        return candidates[0]
    first = int(rng.random() * count)
    second = int(rng.random() * (count - 1))
    second += second >= first
    one, other = candidates[first], candidates[second]
    return one if one.outstanding <= other.outstanding else other


def _choose_again(candidates: Sequence[L], tried: Collection[L], rng: random.Random) -> L | None:
    """A replica on another node first: what killed one may have killed its neighbours."""
    nodes = {replica.node for replica in tried}
    sample = [candidates[int(rng.random() * len(candidates))] for _ in range(_SAMPLES)]
    for pool in (sample, candidates):
        fresh = [replica for replica in pool if replica not in tried]
        away = [replica for replica in fresh if replica.node not in nodes]
        if away or (fresh and pool is candidates):
            return min(away or fresh, key=lambda replica: replica.outstanding)
    return None
