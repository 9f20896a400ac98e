"""How the requests of one served name are divided among versions of its model. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence

import xxhash

from exaslurm.core.canary import Canary

_TWO_TO_64 = float(1 << 64)


def share_of(canary: Canary, name: str, versions: Sequence[str]) -> list[float]:
    """The share of each of ``versions``; all equal where none is given for this name."""
    given = canary.weights.get(name, {})
    shares = [max(0.0, given.get(version, 0.0)) for version in versions]
    return shares if any(shares) else [1.0] * len(versions)


def pick_share(shares: Sequence[float], point: float) -> int:
    """The index whose share holds ``point``, in [0, 1) of the sum of all."""
    left = point * sum(shares)
    last = 0
    for index, share in enumerate(shares):
        if share <= 0:
            continue
        last = index
        left -= share
        if left < 0:
            return index
    return last


def point_of(canary: Canary, name: str, key_name: str, rng: random.Random) -> float:
    """Where in [0, 1) a request falls: the same for one key and served name if sticky."""
    if canary.by == "random":
        return rng.random()
    return xxhash.xxh3_64_intdigest(f"{name}\0{key_name}".encode()) / _TWO_TO_64
