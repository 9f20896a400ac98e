"""Network ports for ranks: the nearest, and among equally near ones used evenly."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence

from exaslurm.bind.distance import Distances, port_name
from exaslurm.core.topology import Gpu, Hca, HcaPort


class Ports:
    """The ports that may be used, by how near they are."""

    def __init__(self, far: Distances, ports: Sequence[tuple[Hca, HcaPort]]) -> None:
        self._far = far
        self._ports = ports
        self._known: dict[tuple[Gpu | None, int | None], tuple[int, list[str]]] = {}

    def nearest(self, gpu: Gpu | None, home: int | None) -> tuple[int, list[str]]:
        """(distance, the ports that near, by name); (0, []) where there are none."""
        known = self._known.get((gpu, home))
        if known is None:
            ways = [(self._far.hca(hca, gpu, home), port_name((hca, port)))
                    for hca, port in self._ports]  # fmt: skip
            least = min((way for way, _ in ways), default=0)
            known = least, [name for way, name in ways if way == least]
            self._known[gpu, home] = known
        return known


def evenly(choices: Sequence[Sequence[str]], use: Mapping[str, int]) -> list[str | None]:
    """One of each rank's choices (None: it has none), so that the squares of the uses are least.

    First come, least used; then one rank at a time is moved along a path of exchanges from a port
    to one that has at least two fewer. Where there is no such path, no other choice is more even
    (semi-matching by cost-reducing paths, Harvey, Ladner, Lovasz and Tamir 2003).
    """
    load = Counter(use)
    chosen: list[str | None] = []
    for names in choices:
        best = min(names, key=lambda name: load[name], default=None)
        chosen.append(best)
        if best is not None:
            load[best] += 1
    while path := _path(choices, chosen, load):
        for rank, name in path:
            before = chosen[rank]
            assert before is not None
            load[before] -= 1
            load[name] += 1
            chosen[rank] = name
    return chosen


def _path(
    choices: Sequence[Sequence[str]], chosen: Sequence[str | None], load: Mapping[str, int]
) -> list[tuple[int, str]]:
    """Moves (rank, its new port) that take one from a port to another with two fewer or less."""
    names = list(dict.fromkeys(name for options in choices for name in options))
    for start in sorted(names, key=lambda name: -load[name]):
        came: dict[str, tuple[int, str] | None] = {start: None}
        queue = deque([start])
        while queue:
            here = queue.popleft()
            if load[here] <= load[start] - 2:
                moves = []
                while (step := came[here]) is not None:
                    rank, before = step
                    moves.append((rank, here))
                    here = before
                return moves
            for rank, name in enumerate(chosen):
                if name == here:
                    for other in choices[rank]:
                        if other not in came:
                            came[other] = (rank, here)
                            queue.append(other)
    return []
