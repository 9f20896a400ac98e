"""Which failures come when. Pure, but for the dice that the caller brings."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal[
    "engine killed",
    "engine hung",
    "agent killed",
    "node lost",
    "controller killed",
    "job cancelled",
    "wall-time reached",
    "router worker killed",
    "supervisor killed",
    "slurmctld silent",
    "file system slow",
]
KINDS: tuple[Kind, ...] = get_args(Kind)

# How often each comes, as a share of all, and how long it lasts (seconds, from and to; where it
# lasts at all).
_SHARES: dict[Kind, int] = {
    "engine killed": 26,
    "engine hung": 14,
    "agent killed": 16,
    "node lost": 12,
    "controller killed": 9,
    "job cancelled": 3,
    "wall-time reached": 4,
    "router worker killed": 4,
    "supervisor killed": 6,
    "slurmctld silent": 3,
    "file system slow": 3,
}
_LASTS: dict[Kind, tuple[float, float]] = {
    "node lost": (30.0, 300.0),
    "supervisor killed": (2.0, 20.0),
    "slurmctld silent": (30.0, 180.0),
    "file system slow": (20.0, 90.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One failure: ``at_s`` after the first, for ``lasts_s``; ``dice`` (0..1) chooses whom."""

    number: int
    kind: Kind
    at_s: float
    lasts_s: float
    dice: tuple[float, ...]


def faults(every_s: float, *, seed: int, most_s: float = math.inf) -> Iterator[Fault]:
    """Failures without end, one each ``every_s`` on average; as often as not they overlap. None
    lasts longer than ``most_s``.

    Every kind comes in its share, also among few: the deck is dealt out before it is shuffled
    again.
    """
    rng = random.Random(seed)
    deck: list[Kind] = []
    at_s = 0.0
    for number in itertools.count():
        if not deck:
            deck = [kind for kind in KINDS for _ in range(_SHARES[kind])]
            deck = spread(deck, rng)
        kind = deck.pop()
        low, high = _LASTS.get(kind, (0.0, 0.0))
        yield Fault(
            number=number,
            kind=kind,
            at_s=at_s,
            lasts_s=min(most_s, rng.uniform(low, high)),
            dice=tuple(rng.random() for _ in range(4)),
        )
        at_s += rng.uniform(0.2 * every_s, 1.8 * every_s)


def spread(deck: list[Kind], rng: random.Random) -> list[Kind]:
    """Shuffled so that the first of each kind lie near the top (the end of the list)."""
    first = list(dict.fromkeys(deck))
    rest = list(deck)
    for kind in first:
        rest.remove(kind)
    rng.shuffle(first)
    rng.shuffle(rest)
    return rest + first
