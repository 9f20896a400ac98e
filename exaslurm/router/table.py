"""Served name -> replicas: changed by events, read by every request."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Collection, Iterable, Sequence

from exaslurm.registry.replica import Replica
from exaslurm.router.breaker import Breaker
from exaslurm.router.choose import choose


class Target:
    """One replica with what this router knows of it."""

    __slots__ = ("breaker", "groups", "outstanding", "replica")

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.outstanding = 0
        self.breaker = Breaker()
        self.groups: list[Group] = []

    @property
    def node(self) -> str:
        return self.replica.node


class Group:
    """The replicas of one served name.

    ``members``: all that are known; ``usable``: those that take requests; ``closed``: those of
    them whose breaker is closed. The lists are rebuilt when one of these facts changes, which
    is rare, so that a request only picks from them.
    """

    __slots__ = ("_ejected", "_order", "closed", "members", "name", "usable")

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: list[Target] = []
        self.usable: list[Target] = []
        self.closed: list[Target] = []
        self._ejected: list[tuple[float, int, Target]] = []
        self._order = itertools.count()

    def rebuild(self) -> None:
        self.usable = [target for target in self.members if target.replica.takes_requests]
        self.closed = [target for target in self.usable if target.breaker.closed]

    def eject(self, target: Target) -> None:
        """The breaker of ``target`` opened: remember when it may be probed."""
        entry = (target.breaker.retry_at_s, next(self._order), target)
        heapq.heappush(self._ejected, entry)
        self.rebuild()

    def pick(self, now_s: float, tried: Collection[Target], rng: random.Random) -> Target | None:
        """The replica for the next attempt; None if all were tried or none takes requests.

        An ejected one whose time has come gets this request as its probe. With all ejected
        any of them is better than none.
        """
        probe = self._due_probe(now_s, tried)
        if probe is not None:
            probe.breaker.begin_probe()
            return probe
        return choose(self.closed, tried, rng) or choose(self.usable, tried, rng)

    def _due_probe(self, now_s: float, tried: Collection[Target]) -> Target | None:
        while self._ejected and self._ejected[0][0] <= now_s:
            _, _, target = heapq.heappop(self._ejected)
            # Entries of breakers that closed or moved on meanwhile are simply forgotten.
            if target.breaker.may_probe(now_s) and target.replica.takes_requests:
                if target not in tried:
                    return target
                self.eject(target)
                break
        return None


class Table:
    """All replicas, by id and by served name."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._targets: dict[str, Target] = {}
        self._groups: dict[str, Group] = {}
        self._rng = rng or random.Random()
        self.on_eject: Callable[[Target], None] = lambda _: None

    def update(self, replicas: Sequence[Replica]) -> None:
        """Take the whole new list. Replicas that stay keep their counts; one that moved or is
        newly ready starts with a clean slate."""
        targets: dict[str, Target] = {}
        names: dict[str, list[Target]] = {}
        for replica in replicas:
            target = self._targets.get(replica.id)
            if target is None or target.replica.url != replica.url:
                target = Target(replica)
            elif target.replica is not replica:
                restarted = target.replica.pid != replica.pid
                if replica.ready and (restarted or not target.replica.ready):
                    target.breaker.reset()
                target.replica = replica
            targets[replica.id] = target
            for name in replica.served_names:
                names.setdefault(name, []).append(target)
        self._targets = targets
        groups = {name: self._groups.get(name) or Group(name) for name in names}
        for target in targets.values():
            target.groups = [groups[name] for name in target.replica.served_names]
        for name, group in groups.items():
            group.members = names[name]
            group.rebuild()
        self._groups = groups

    def group(self, name: str) -> Group | None:
        return self._groups.get(name)

    def only_group(self) -> Group | None:
        """The group that a request without a model means: that of the one shard there is."""
        groups = list(self._groups.values())
        if groups and all(group.members == groups[0].members for group in groups[1:]):
            return groups[0]
        return None

    def pick(self, group: Group, now_s: float, tried: Collection[Target]) -> Target | None:
        return group.pick(now_s, tried, self._rng)

    def succeeded(self, target: Target) -> None:
        if target.breaker.success():
            _rebuild(target.groups)

    def failed(self, target: Target, now_s: float, *, fatal: bool = False) -> None:
        if target.breaker.failure(now_s, fatal=fatal):
            self._eject(target)

    def told_nothing(self, target: Target, now_s: float) -> None:
        """A request ended without saying anything about its replica."""
        if target.breaker.abandon_probe(now_s):
            for group in target.groups:
                group.eject(target)

    def _eject(self, target: Target) -> None:
        for group in target.groups:
            group.eject(target)
        self.on_eject(target)

    @property
    def names(self) -> list[str]:
        """Every served name, ready or not."""
        return list(self._groups)

    @property
    def targets(self) -> Iterable[Target]:
        return self._targets.values()


def _rebuild(groups: Iterable[Group]) -> None:
    for group in groups:
        group.rebuild()
