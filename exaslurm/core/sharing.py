"""Which cells are wanted for a number of replicas, and how many each of them runs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set

from exaslurm.core.plan import Plan
from exaslurm.core.scale import Scale

Counts = Mapping[str, int]
"""How many replicas of each shard (``model:shard``)."""


def planned(plan: Plan) -> Counter[str]:
    """How many replicas of each shard the plan has room for."""
    return sum((_room(plan, cell.name) for cell in plan.cells), Counter())


def at_start(plan: Plan) -> Scale | None:
    """What is wanted when a deployment begins; None: all that is planned."""
    if plan.autoscale is None:
        return None
    return Scale(replicas={name: shard.start for name, shard in plan.autoscale.shards.items()})


def share(plan: Plan, scale: Scale | None, living: Set[str]) -> dict[str, Counts | None]:
    """By name of each cell that is wanted, how many replicas of each shard it shall run (None: all
    that are planned there). More replicas than the plan has room for are not given out.

    What cells run that have a job (``living``) stays there, as far as it is wanted at all. As long
    as there are enough replicas of a shard, it has some in as many cells as the plan's survival
    asks for, evenly; those beyond fill one cell after the other, and are the first to go, so that
    whole cells become free.
    """
    most = planned(plan)
    asked = scale.replicas if scale is not None else {}
    wish = {shard: max(0, min(asked.get(shard, count), count)) for shard, count in most.items()}
    if wish == dict(most):
        return dict.fromkeys(cell.name for cell in plan.cells)
    shares = _Shares(plan, living)
    if scale is not None:
        shares.recall(scale.cells)
    for shard, count in wish.items():
        while shares.count(shard) > count:
            shares.take(shard)
        while shares.count(shard) < count:
            shares.give(shard)
    return shares.wanted()


class _Shares:
    """Replicas of shards in cells while they are divided."""

    def __init__(self, plan: Plan, living: Set[str]) -> None:
        self._room = {cell.name: _room(plan, cell.name) for cell in plan.cells}
        self._living = living
        self._apart = plan.survival.cells + 1
        self._held: dict[str, Counter[str]] = {name: Counter() for name in self._room}

    def recall(self, cells: Mapping[str, Counts]) -> None:
        """What cells that live ran before; what those ran that do not has to go somewhere."""
        for name, counts in cells.items():
            if name in self._living and name in self._room:
                for shard, room in self._room[name].items():
                    self._held[name][shard] = min(counts.get(shard, 0), room)

    def count(self, shard: str) -> int:
        return sum(held[shard] for held in self._held.values())

    def give(self, shard: str) -> None:
        """One more replica: to another cell while the shard is in too few, else to the emptiest of
        those that it is in for survival's sake, else to one that is in use, else to a new one."""
        free = [n for n, room in self._room.items() if self._held[n][shard] < room[shard]]
        having = self._having(shard)
        if len(having) < self._apart:
            new = [name for name in free if name not in having]
            if new:
                self._held[min(new, key=self._opening)][shard] += 1
                return
        base = [name for name in having[: self._apart] if name in free]
        if base:
            name = min(base, key=lambda name: (self._held[name][shard], name))
        else:
            name = min(free, key=lambda name: (-self._held[name][shard], *self._opening(name)))
        self._held[name][shard] += 1

    def take(self, shard: str) -> None:
        """One replica less: where the cell is the first to become free."""
        having = self._having(shard)
        beyond = having[self._apart :]
        if beyond:
            name = min(beyond, key=lambda name: (self._held[name].total(), _after(name)))
        else:
            name = max(having, key=lambda name: (self._held[name][shard], name))
        self._held[name][shard] -= 1

    def wanted(self) -> dict[str, Counts | None]:
        return {
            name: {shard: held[shard] for shard in self._room[name]}
            for name, held in self._held.items()
            if held.total()
        }

    def _having(self, shard: str) -> list[str]:
        """The cells that the shard is in, those with most replicas of all shards first."""
        found = [name for name, held in self._held.items() if held[shard]]
        return sorted(found, key=lambda name: (-self._held[name].total(), name))

    def _opening(self, name: str) -> tuple[bool, bool, str]:
        """Cells in use come before those that only live, and these before those that do not."""
        return (not self._held[name].total(), name not in self._living, name)


def _room(plan: Plan, cell: str) -> Counter[str]:
    return Counter({f"{s.model}:{s.shard}": s.count for s in plan.cell(cell).replica_sets})


def _after(name: str) -> tuple[int, ...]:
    """A key that sorts names backwards."""
    return tuple(-ord(char) for char in name)
