"""The ways to place one replica, as far as they differ in cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from exaslurm.bind.cost import homes
from exaslurm.bind.distance import Distances
from exaslurm.bind.parts import Free, GrantedGpu, Want
from exaslurm.bind.ports import Ports
from exaslurm.core.topology import Gpu

# Eight of sixteen GPUs that are all different are 12870; the first ones are the nearest numbers.
_MOST = 5000

Wanted = Counter[int | None]


@dataclass(frozen=True, slots=True)
class Option:
    """One way: GPUs (places in ``Free.gpus``) and home. ``shares`` are the cores of each part,
    ``near`` the NUMA nodes where they should be; ``key`` tells options of different cost apart."""

    gpus: tuple[int, ...]
    home: int | None
    key: tuple[int, ...]
    price_gpus: int
    price_ports: int
    shares: tuple[int, ...]
    near: tuple[int | None, ...]

    def wanted(self) -> Wanted:
        """Cores by the NUMA node where they should be."""
        found: Wanted = Counter()
        for share, near in zip(self.shares, self.near, strict=True):
            found[near] += share
        return found


class Options:
    """The ways on one node."""

    def __init__(self, free: Free, far: Distances, ports: Ports) -> None:
        self._free = free
        self._far = far
        self._ports = ports
        self._homes = homes(free.topology, tuple(core.numa for core in free.cores))
        self._classes = _alike([granted.gpu for granted in free.gpus], far, ports)
        self._class_of = {gpu: i for i, members in enumerate(self._classes) for gpu in members}
        self._among: dict[tuple[int, ...], int] = {}

    def of(self, want: Want, free_gpus: frozenset[int]) -> Iterator[Option]:
        """All of them; of GPUs that are alike the first ones are taken."""
        by_class = [[gpu for gpu in gpus if gpu in free_gpus] for gpus in self._classes]
        for gpus in islice(combinations(by_class, want.gpus), _MOST):
            yield from self._with_homes(gpus, self._free.cores_of(want))

    def at(self, option: Option, want: Want, home: int | None) -> Option:
        """The same GPUs with another home; the option itself where it has none."""
        ways = self._with_homes(option.gpus, self._free.cores_of(want))
        return next((way for way in ways if way.home == home), option)

    def cards(self, option: Option) -> list[GrantedGpu | None]:
        """The GPU of each part; one part without a GPU where the replica has none."""
        return [self._free.gpus[gpu] for gpu in option.gpus] or [None]

    def port_choices(self, option: Option) -> list[list[str]]:
        """The nearest ports of each part."""
        return [
            self._ports.nearest(card.gpu if card else None, option.home)[1]
            for card in self.cards(option)
        ]

    def _with_homes(self, gpus: tuple[int, ...], number: int) -> Iterator[Option]:
        cards: list[Gpu | None] = [self._free.gpus[gpu].gpu for gpu in gpus]
        if gpus not in self._among:
            self._among[gpus] = self._far.among([card for card in cards if card is not None])
        cards = cards or [None]
        numa = [card.numa if card is not None else None for card in cards]
        shares = even_shares(number, numa)
        for home in self._homes if None in numa else [None]:
            yield Option(
                gpus=gpus,
                home=home,
                key=(*sorted(self._class_of[gpu] for gpu in gpus), by_numa(home)),
                price_gpus=self._among[gpus],
                price_ports=sum(self._ports.nearest(card, home)[0] for card in cards),
                shares=shares,
                near=tuple(home if near is None else near for near in numa),
            )


def even_shares(number: int, numa: Sequence[int | None]) -> tuple[int, ...]:
    """Cores of each part. What is over goes by NUMA node, so that it makes no difference which
    of two like GPUs comes first."""
    shares = [number // len(numa)] * len(numa)
    for place in sorted(range(len(numa)), key=lambda i: (by_numa(numa[i]), i)):
        if sum(shares) < number:
            shares[place] += 1
    return tuple(shares)


def combinations(classes: Sequence[Sequence[int]], count: int) -> Iterator[tuple[int, ...]]:
    """``count`` members in all, of each class the first ones; each in ascending order."""

    def pick(place: int, left: int) -> Iterator[tuple[int, ...]]:
        if left == 0:
            yield ()
        elif left <= sum(map(len, classes[place:])):
            for number in range(min(left, len(classes[place])), -1, -1):
                for rest in pick(place + 1, left - number):
                    yield (*classes[place][:number], *rest)

    for members in pick(0, count):
        yield tuple(sorted(members))


def by_numa(numa: int | None) -> int:
    """NUMA nodes by number, the unknown first."""
    return -1 if numa is None else numa


def _alike(gpus: Sequence[Gpu], far: Distances, ports: Ports) -> list[list[int]]:
    """The GPUs in classes: to swap two of a class changes no cost."""
    way = [[far.gpus(one, other) for other in gpus] for one in gpus]

    def alike(one: int, other: int) -> bool:
        return (
            gpus[one].numa == gpus[other].numa
            and ports.nearest(gpus[one], None) == ports.nearest(gpus[other], None)
            and all(
                way[one][third] == way[other][third]
                for third in range(len(gpus))
                if third not in (one, other)
            )
        )

    classes: list[list[int]] = []
    for gpu in range(len(gpus)):
        for members in classes:
            if alike(members[0], gpu):
                members.append(gpu)
                break
        else:
            classes.append([gpu])
    return classes
