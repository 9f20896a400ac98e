"""The cheapest placement of replicas on one node (``cost`` says what cheap means).

A search over what matters to the cost: which GPUs each replica gets, and in which NUMA node one
without GPUs is at home. Given these, the cores are a transport problem with an exact solution
(``flow``), and so are memory and ports. The search begins with a greedy placement; on the regular
nodes of real machines that reaches a bound below which no placement can be, and it ends there. On
others it goes on (depth first, branches that cannot get better are cut) until everything was
looked at or the effort is spent, about a second: then the best that was found stands.

Deterministic: equal placements are told apart by order, and like replicas get GPUs and cores in
ascending order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from exaslurm.bind.cost import Cost, cost, distances, home_of, left_of, unevenness
from exaslurm.bind.distance import port_name
from exaslurm.bind.fits import fits_of, in_order
from exaslurm.bind.flow import transport
from exaslurm.bind.options import Option, Options, Wanted
from exaslurm.bind.parts import Fit, Free, Want
from exaslurm.bind.ports import Ports, evenly

# An option is looked at in some 20 us, a placement in some 2 ms.
_EFFORT = 50_000
_PLACEMENT = 100
_TOO_MUCH = 1 << 60


def optimum(free: Free, wants: Sequence[Want]) -> list[Fit] | None:
    """A place for each of the replicas; None if GPUs or cores do not suffice."""
    if sum(want.gpus for want in wants) > len(free.gpus):
        return None
    if sum(free.cores_of(want) for want in wants) > len(free.cores):
        return None
    order = sorted(range(len(wants)), key=lambda i: _size(wants[i]), reverse=True)
    found = _Search(free, [wants[i] for i in order]).run()
    by_place = dict(zip(order, found, strict=True))
    return [by_place[i] for i in range(len(wants))]


def _size(want: Want) -> tuple[int, int, int]:
    return (want.gpus, want.cpus, want.mem_mib)


class _Search:
    """Replicas in an order in which like ones are neighbours."""

    def __init__(self, free: Free, wants: Sequence[Want]) -> None:
        self._free = free
        self._wants = wants
        self._far = distances(free.topology)
        self._ports = Ports(self._far, free.ports)
        self._options = Options(free, self._far, self._ports)
        self._there = Counter(core.numa for core in free.cores)
        self._all_gpus = frozenset(range(len(free.gpus)))
        self._core_prices: dict[frozenset[tuple[int | None, int]], int] = {}
        self._least = self._least_prices()
        self._bound = Cost(
            gpus=sum(gpus for gpus, _ in self._least),
            ports=sum(ports for _, ports in self._least),
            port_use=self._least_port_use(),
            left=self._least_left(),
            kept=int(sum(map(free.cores_of, wants)) == len(free.cores) and free.keep is not None),
        )
        self._kept_in = next((c.numa for c in free.cores if c.cpus[0] == free.keep), None)
        self._effort = _EFFORT
        self._chosen: Sequence[Option] = ()
        self._best: list[Fit] = []
        self._price = Cost()

    def run(self) -> list[Fit]:
        """The best placement that was found, for each replica."""
        self._chosen = self._greedy()
        self._best = self._fits(self._chosen)
        self._price = cost(self._free, self._wants, self._best)
        if self._price > self._bound:
            self._descend([], self._all_gpus, Counter())
        while self._price.cores and self._at_home():
            pass
        return self._best

    def _at_home(self) -> bool:
        """Let each replica be at home where most of it came to be; whether that was better.

        Only where the search ended early: then no single core could be nearer afterwards."""
        chosen = [
            self._options.at(option, want, home_of(self._far, fit))
            for option, want, fit in zip(
                in_order(self._wants, self._chosen), self._wants, self._best, strict=True
            )
        ]
        return self._is_better(chosen)

    def _is_better(self, chosen: Sequence[Option]) -> bool:
        fits = self._fits(chosen)
        price = cost(self._free, self._wants, fits)
        if price >= self._price:
            return False
        self._chosen, self._best, self._price = chosen, fits, price
        return True

    def _fits(self, chosen: Sequence[Option]) -> list[Fit]:
        return fits_of(self._free, self._wants, chosen, self._options, self._far, self._ports)

    def _greedy(self) -> list[Option]:
        """One replica after the other, each at the least cost beside those before it."""
        free_gpus = self._all_gpus
        wanted: Wanted = Counter()
        use = Counter(self._free.port_use)
        chosen: list[Option] = []
        for want in self._wants:
            best = min(
                self._options.of(want, free_gpus),
                key=lambda option: (*self._price_beside(option, wanted, use), option.gpus),
            )
            use = self._used(use, best)
            wanted = wanted + best.wanted()
            free_gpus -= frozenset(best.gpus)
            chosen.append(best)
        return chosen

    def _price_beside(self, option: Option, wanted: Wanted, use: Counter[str]) -> tuple[int, ...]:
        after = wanted + option.wanted()
        left = left_of(self._free, ())
        left.subtract(after)
        return (
            option.price_gpus,
            self._core_price(after),
            option.price_ports,
            _squares(self._used(use, option)),
            unevenness(left),
            max(self._bound.kept, int(left[self._kept_in] <= 0)),
        )

    def _descend(self, chosen: list[Option], free_gpus: frozenset[int], wanted: Wanted) -> None:
        place = len(chosen)
        ahead = self._least[place:]
        bound = Cost(
            gpus=sum(o.price_gpus for o in chosen) + sum(gpus for gpus, _ in ahead),
            cores=self._core_price(wanted),
            ports=sum(o.price_ports for o in chosen) + sum(ports for _, ports in ahead),
            port_use=self._bound.port_use,
            left=self._bound.left,
            kept=self._bound.kept,
        )
        if bound >= self._price:
            return
        if place == len(self._wants):
            self._effort -= _PLACEMENT
            self._is_better(chosen)
            return
        want = self._wants[place]
        alike = place > 0 and self._wants[place - 1] == want
        options = sorted(
            self._options.of(want, free_gpus), key=lambda o: (o.price_gpus, o.price_ports, o.key)
        )
        self._effort -= len(options)
        for option in options:
            if self._effort <= 0 or self._price <= self._bound:
                return
            # Of like replicas only one order is looked at.
            if not alike or option.key >= chosen[-1].key:
                self._descend(
                    [*chosen, option], free_gpus - frozenset(option.gpus), wanted + option.wanted()
                )

    # Prices and bounds.

    def _core_price(self, wanted: Wanted) -> int:
        key = frozenset(wanted.items())
        if key not in self._core_prices:
            found = transport(wanted, self._there, self._far.numa)
            self._core_prices[key] = found[0] if found is not None else _TOO_MUCH
        return self._core_prices[key]

    def _used(self, use: Counter[str], option: Option) -> Counter[str]:
        names = evenly(self._options.port_choices(option), use)
        return use + Counter(name for name in names if name is not None)

    def _least_prices(self) -> list[tuple[int, int]]:
        """Of each replica, if it were alone."""
        least = {}
        for want in set(self._wants):
            options = list(self._options.of(want, self._all_gpus))
            least[want] = (
                min(option.price_gpus for option in options),
                min(option.price_ports for option in options),
            )
        return [least[want] for want in self._wants]

    def _least_port_use(self) -> int:
        names = [port_name(pair) for pair in self._free.ports]
        ranks = sum(max(1, want.gpus) for want in self._wants)
        use = Counter(self._free.port_use)
        use.update(name for name in evenly([names] * ranks, use) if name is not None)
        return _squares(use)

    def _least_left(self) -> int:
        left = left_of(self._free, ())
        for _ in range(sum(self._free.cores_of(want) for want in self._wants)):
            left[max(left, key=lambda numa: left[numa])] -= 1
        return unevenness(left)


def _squares(use: Counter[str]) -> int:
    return sum(count * count for count in use.values())
