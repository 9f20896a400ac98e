"""Which replica gets a request: the less loaded one of two taken at random. Pure.

Looking at every replica is what makes routers slow at thousands of them; two random ones give
nearly the same balance, and no herd runs to the replica that looked idle a moment ago.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Protocol, TypeVar


class Loaded(Protocol):
    """What the choice looks at. ``outstanding``: requests that this router sent there and that are
    not finished; ``penalty``: what else weighs on it, in requests."""

    outstanding: int
    penalty: float

    @property
    def domains(self) -> tuple[str, str, str]:
        """Node, switch and cell: what dies together, the smallest first (empty: not known)."""


L = TypeVar("L", bound=Loaded)

_SAMPLES: Final = 8
_SAME_NODE: Final = 3


def choose(
    candidates: Sequence[L],
    tried: Collection[L],
    rng: random.Random,
    fits: Callable[[L], bool] | None = None,
) -> L | None:
    """One of ``candidates`` that is not in ``tried``; None if there is none.

    ``fits`` is asked where only some can serve the request. The time does not depend on the
    number of candidates, but for a second attempt that finds hardly anything left.
    """
    count = len(candidates)
    if count == 0:
        return None
    if tried or fits is not None:
        return _choose_again(candidates, tried, rng, fits)
    if count == 1:
        return candidates[0]
    rand = rng.random
    first = int(rand() * count)
    second = int(rand() * (count - 1))
    second += second >= first
    one, other = candidates[first], candidates[second]
    return one if one.outstanding + one.penalty <= other.outstanding + other.penalty else other


def _choose_again(
    candidates: Sequence[L],
    tried: Collection[L],
    rng: random.Random,
    fits: Callable[[L], bool] | None,
) -> L | None:
    """A replica of another failure domain first: what killed one may have killed its neighbours."""
    lost = [replica.domains for replica in tried]
    if len(candidates) > 2 * _SAMPLES:
        sample = [candidates[int(rng.random() * len(candidates))] for _ in range(_SAMPLES)]
        found = _best(sample, tried, lost, fits)
        if found is not None and _shared(found, lost) < _SAME_NODE:
            return found
    return _best(candidates, tried, lost, fits)


def _best(
    pool: Sequence[L],
    tried: Collection[L],
    lost: Sequence[tuple[str, str, str]],
    fits: Callable[[L], bool] | None,
) -> L | None:
    fresh = [
        replica for replica in pool if replica not in tried and (fits is None or fits(replica))
    ]
    return min(fresh, key=lambda replica: (_shared(replica, lost), _score(replica)), default=None)


def _shared(replica: Any, lost: Sequence[tuple[str, str, str]]) -> int:
    """How near a replica is to those that were tried: 3 the same node, 2 the same switch, 1 the
    same cell, 0 none of these, or nothing known."""
    node, switch, cell = replica.domains
    nearest = 0
    for other_node, other_switch, other_cell in lost:
        if node and node == other_node:
            return _SAME_NODE
        if switch and switch == other_switch:
            nearest = max(nearest, 2)
        elif cell and cell == other_cell:
            nearest = max(nearest, 1)
    return nearest


def _score(replica: Any) -> float:
    score: float = replica.outstanding + replica.penalty
    return score
