"""The cheapest way to carry amounts from places that want them to places that have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Distance = Callable[[int | None, int | None], int]
Amounts = Mapping[int | None, int]
Flows = dict[tuple[int | None, int | None], int]


def transport(wanted: Amounts, there: Amounts, distance: Distance) -> tuple[int, Flows] | None:
    """(cost, amount for each pair of where it is wanted and where it is taken); None if there is
    less than is wanted.

    The cost is the sum of amount x distance, and no other way costs less (successive shortest
    paths: exact for any table of distances, also one that is no metric). Equal ways are told
    apart by the order of the places.
    """
    if sum(wanted.values()) > sum(there.values()):
        return None
    if all(amount <= there.get(place, 0) for place, amount in wanted.items()) and all(
        distance(place, place) == 0 for place in wanted
    ):
        return 0, {(place, place): amount for place, amount in wanted.items() if amount}
    flows: Flows = {}
    left = dict(wanted)
    free = dict(there)
    sources = sorted(wanted, key=_order)
    sinks = sorted(there, key=_order)
    while any(left.values()):
        path = _shortest(sources, sinks, left, free, flows, distance)
        amount = min(left[path[0]], free[path[-1]])
        for i in range(1, len(path) - 1, 2):  # what is taken back on the way
            amount = min(amount, flows[path[i + 1], path[i]])
        for i in range(0, len(path) - 1, 2):
            flows[path[i], path[i + 1]] = flows.get((path[i], path[i + 1]), 0) + amount
            if i + 2 < len(path):
                flows[path[i + 2], path[i + 1]] -= amount
        left[path[0]] -= amount
        free[path[-1]] -= amount
    flows = {pair: amount for pair, amount in flows.items() if amount}
    return sum(amount * distance(*pair) for pair, amount in flows.items()), flows


def _shortest(
    sources: list[int | None],
    sinks: list[int | None],
    left: Mapping[int | None, int],
    free: Mapping[int | None, int],
    flows: Flows,
    distance: Distance,
) -> list[int | None]:
    """Source, sink, source, ..., sink: the cheapest way for one more (Bellman-Ford)."""
    at_source: dict[int | None, int] = {place: 0 for place in sources if left[place]}
    at_sink: dict[int | None, int] = {}
    from_source: dict[int | None, int | None] = {}
    from_sink: dict[int | None, int | None] = {}
    changed = True
    while changed:
        changed = False
        for source in sources:
            if source not in at_source:
                continue
            for sink in sinks:
                cost = at_source[source] + distance(source, sink)
                if sink not in at_sink or cost < at_sink[sink]:
                    at_sink[sink], from_source[sink], changed = cost, source, True
        for sink in sinks:
            for source in sources:
                if sink in at_sink and flows.get((source, sink), 0):
                    cost = at_sink[sink] - distance(source, sink)
                    if source not in at_source or cost < at_source[source]:
                        at_source[source], from_sink[source], changed = cost, sink, True
    end = min((s for s in sinks if free[s]), key=lambda s: (at_sink[s], _order(s)))
    path = [end]
    while True:
        source = from_source[path[-1]]
        path.append(source)
        if source not in from_sink:
            return path[::-1]
        path.append(from_sink[source])


def _order(place: int | None) -> int:
    return -1 if place is None else place
