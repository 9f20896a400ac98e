"""Served name -> replicas: changed by events, read by every request."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from exaslurm.core.canary import Canary
from exaslurm.core.cell import EngineLoad
from exaslurm.registry.replica import Replica
from exaslurm.router.affinity import Affinity
from exaslurm.router.breaker import Breaker
from exaslurm.router.canary import pick_share, point_of, share_of
from exaslurm.router.choose import choose
from exaslurm.router.ejected import Ejected
from exaslurm.router.upstream import Endpoint

log = logging.getLogger(__name__)

_FULL_KV = 0.9


class Target:
    """One replica with what this router knows of it.

    ``closed``: it takes requests, and its breaker is closed; ``clean``: a good answer of it would
    tell nothing new (both are here, too, because they are read for every request, and a breaker
    is far away in memory where there are thousands). ``penalty`` is in requests: what other
    routers of this host have sent there (``elsewhere``), what its engine says of its queue and
    cache, and how slow it was. ``latency_s``: what its answers took of late until they began, 0 if
    not known.
    """

    __slots__ = (
        "breaker",
        "clean",
        "closed",
        "domains",
        "elsewhere",
        "endpoint",
        "engine_model",
        "ident",
        "label",
        "lanes",
        "latency_s",
        "load",
        "load_at_s",
        "load_own",
        "outstanding",
        "penalty",
        "replica",
    )

    def __init__(self, replica: Replica, key: str | None) -> None:
        self.endpoint = Endpoint(replica.url, key)
        self.ident = replica.id
        self.label = b"\r\nx-exaslurm-replica: %b\r\n" % replica.id.encode()
        self.outstanding = 0
        self.penalty = 0.0
        self.latency_s = 0.0
        self.closed = False
        self.clean = True
        self.elsewhere = 0
        self.load: EngineLoad | None = None
        self.load_at_s = 0.0
        self.load_own = 0
        self.breaker = Breaker()
        self.lanes: list[Lane] = []
        self.describe(replica)

    def describe(self, replica: Replica) -> None:
        """This is what is known of it now."""
        self.replica = replica
        self.engine_model = replica.engine_model
        self.domains = (replica.node, replica.switch, replica.cell)
        self.settle()

    def settle(self) -> None:
        """What decides whether it gets requests has changed."""
        breaker = self.breaker
        self.closed = self.replica.takes_requests and breaker.closed
        self.clean = breaker.clean


class Lane:
    """The replicas of one served name and one version of its model.

    ``members``: all that are known; ``usable``: those that take requests; ``closed``: those of
    them whose breaker is closed, in any order. The lists follow when one of these facts changes,
    which is rare, so that a request only picks from them.
    """

    __slots__ = (
        "_ejected",
        "_places",
        "affinity",
        "closed",
        "lengths",
        "members",
        "usable",
        "version",
    )

    def __init__(self, version: str, *, by_prefix: bool) -> None:
        self.version = version
        self.members: list[Target] = []
        self.usable: list[Target] = []
        self.closed: list[Target] = []
        self.lengths: tuple[int, int] | None = None
        """Smallest and largest ``max_model_len`` of the usable ones, where all have said it."""
        self.affinity: Affinity[Target] | None = Affinity() if by_prefix else None
        # Where in ``closed`` each of those is.
        self._places: dict[Target, int] = {}
        self._ejected: Ejected[Target] = Ejected()

    def rebuild(self) -> None:
        self.usable = [target for target in self.members if target.replica.takes_requests]
        self.closed = [target for target in self.usable if target.closed]
        self._places = {target: place for place, target in enumerate(self.closed)}
        # Of those that are here now: one that has left must not be probed, and one that took no
        # requests for a while, or came from another lane, has to be.
        self._ejected = Ejected()
        for target in self.usable:
            if not target.closed:
                self._ejected.put(target, target.breaker.retry_at_s)
        known = [target.replica.max_model_len for target in self.usable]
        lengths = [length for length in known if length]
        self.lengths = (
            (min(lengths), max(lengths)) if lengths and len(lengths) == len(known) else None
        )

    def follow(self, target: Target) -> None:
        """The breaker of a member has opened or closed, or is to be tried at another time. The
        time does not depend on the number of replicas: half of thousands may be lost at once."""
        if not target.replica.takes_requests:
            return
        closed, places = self.closed, self._places
        place = places.get(target)
        if target.closed:
            self._ejected.discard(target)
            if place is None:
                places[target] = len(closed)
                closed.append(target)
            return
        if place is not None:
            # The last one takes its place.
            last = closed.pop()
            del places[target]
            if last is not target:
                closed[place] = last
                places[last] = place
        self._ejected.put(target, target.breaker.retry_at_s)

    def pick(
        self,
        now_s: float,
        tried: Collection[Target],
        rng: random.Random,
        keys: Sequence[int] = (),
        session: int = 0,
        tokens: int = 0,
    ) -> Target | None:
        """The replica for the next attempt; None if all were tried or none takes requests.

        An ejected one whose time has come gets this request as its probe. With all ejected
        any of them is better than none. ``keys``: the hashes of the prompt's blocks; ``session``:
        that of the session it belongs to, 0 for none; ``tokens``: what the request needs, where
        that decides who can serve it.
        """
        ejected = self._ejected.heap
        if ejected and ejected[0][0] <= now_s:
            probe = self.probe(now_s, tried, tokens)
            if probe is not None:
                return probe
        if tokens:
            return self._pick_fitting(tried, rng, keys, session, tokens)
        if not tried and (keys or session):
            target = self._at_home(rng, keys, session)
            if target is not None:
                return target
        return choose(self.closed, tried, rng) or choose(self.usable, tried, rng)

    def _at_home(
        self,
        rng: random.Random,
        keys: Sequence[int],
        session: int,
        fits: Callable[[Target], bool] | None = None,
    ) -> Target | None:
        """Where this session, or what begins like this prompt, has been before."""
        if self.affinity is None:
            return None
        if session:
            return self.affinity.stay(session, rng, fits=fits)
        return self.affinity.choose(keys, rng, fits=fits)

    def _pick_fitting(
        self,
        tried: Collection[Target],
        rng: random.Random,
        keys: Sequence[int],
        session: int,
        tokens: int,
    ) -> Target | None:
        def takes(target: Target) -> bool:
            return _takes(target, tokens)

        def has_room(target: Target) -> bool:
            return takes(target) and (target.load is None or target.load.kv_use < _FULL_KV)

        if not tried and (keys or session):
            target = self._at_home(rng, keys, session, has_room)
            if target is not None:
                return target
        for pool, fits in ((self.closed, has_room), (self.closed, takes), (self.usable, takes)):
            target = choose(pool, tried, rng, fits)
            if target is not None:
                return target
        return choose(self.closed, tried, rng)

    def probe(self, now_s: float, tried: Collection[Target], tokens: int) -> Target | None:
        """An ejected replica whose time has come: this request tells how it is now."""

        def suits(target: Target) -> bool:
            return target not in tried and _takes(target, tokens)

        probe = self._ejected.next_due(now_s, suits)
        if probe is not None:
            probe.breaker.begin_probe(now_s)
            probe.settle()
            self._ejected.put(probe, probe.breaker.retry_at_s)
        return probe


class Group:
    """The replicas of one served name: a lane for each version of its model."""

    __slots__ = ("lanes", "longest", "may_wake", "name", "shares", "uneven", "usable_count")

    def __init__(self, name: str) -> None:
        self.name = name
        self.lanes: list[Lane] = []
        self.shares: list[float] = []
        self.usable_count = 0
        self.may_wake = False
        """Whether a replica is started for it when somebody asks."""
        self.longest: int | None = None
        """The largest number of tokens that one of its replicas takes; None: not known."""
        self.uneven = False
        """Whether some of them take fewer tokens than others."""

    @property
    def members(self) -> list[Target]:
        return [target for lane in self.lanes for target in lane.members]

    @property
    def usable(self) -> list[Target]:
        return [target for lane in self.lanes for target in lane.usable]

    @property
    def closed(self) -> list[Target]:
        return [target for lane in self.lanes for target in lane.closed]

    def count(self) -> None:
        """Add up what the lanes hold, after a change of them."""
        self.usable_count = sum(len(lane.usable) for lane in self.lanes)
        serving = [lane.lengths for lane in self.lanes if lane.usable]
        known = [lengths for lengths in serving if lengths is not None]
        self.uneven = len({length for lengths in known for length in lengths}) > 1
        self.longest = (
            max(longest for _, longest in known) if known and len(known) == len(serving) else None
        )


class Table:
    """All replicas, by id and by served name."""

    def __init__(
        self,
        *,
        key: str | None = None,
        by_prefix: bool = True,
        canary: Canary | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._key = key
        self._by_prefix = by_prefix
        self._canary = canary or Canary()
        self._targets: dict[str, Target] = {}
        self._groups: dict[str, Group] = {}
        self._only: Group | None = None
        self._wakeable: Mapping[str, str] = {}
        self._rng = rng or random.Random()
        self.on_eject: Callable[[Target], None] = lambda _: None
        self.on_change: Callable[[], None] = lambda: None
        self.on_removed: Callable[[Target], None] = lambda _: None

    def update(self, replicas: Sequence[Replica]) -> None:
        """Take the whole new list. Replicas that stay keep their counts; one that moved or is
        newly ready starts with a clean slate. One whose address is none is left out."""
        before = self._targets
        targets: dict[str, Target] = {}
        names: dict[str, dict[str, list[Target]]] = {}
        for replica in replicas:
            target = before.get(replica.id)
            if target is None or _address(target.replica) != _address(replica):
                try:
                    target = Target(replica, replica.key or self._key)
                except ValueError as error:  # somebody has edited its record
                    log.error("replica %s is left out: %s", replica.id, error)
                    continue
            elif target.replica is not replica:
                # A controller that has just started does not know it yet: that says nothing.
                known = (target.replica.pid, replica.pid)
                restarted = None not in known and known[0] != known[1]
                if replica.ready and (restarted or not target.replica.ready):
                    target.breaker.reset()
                if restarted:
                    _forget_cache(target)
                target.describe(replica)
            targets[replica.id] = target
            for name in replica.served_names:
                names.setdefault(name, {}).setdefault(replica.version, []).append(target)
        for name in self._wakeable:
            names.setdefault(name, {})
        self._targets = targets
        for target in targets.values():
            target.lanes = []
        self._groups = {name: self._regroup(name, lanes) for name, lanes in names.items()}
        self._only = self._find_only()
        for ident, target in before.items():
            if targets.get(ident) is not target:
                target.lanes = []
                self.on_removed(target)
        self.on_change()

    def _regroup(self, name: str, members: Mapping[str, list[Target]]) -> Group:
        group = self._groups.get(name) or Group(name)
        known = {lane.version: lane for lane in group.lanes}
        group.lanes = []
        for version in sorted(members):
            lane = known.get(version) or Lane(version, by_prefix=self._by_prefix)
            lane.members = members[version]
            for target in lane.members:
                target.lanes.append(lane)
            if lane.affinity is not None:
                lane.affinity.retain(lane.members)
            lane.rebuild()
            group.lanes.append(lane)
        group.count()
        group.may_wake = name in self._wakeable
        group.shares = share_of(self._canary, name, [lane.version for lane in group.lanes])
        return group

    def may_wake(self, names: Mapping[str, str]) -> None:
        """These served names (with their models) exist also while they have no replica: one is
        started when somebody asks. It counts from the next ``update``."""
        self._wakeable = dict(names)

    def model_of(self, group: Group) -> str:
        """The model behind a served name."""
        usable = group.usable
        return usable[0].replica.model if usable else self._wakeable.get(group.name, "")

    def divide(self, canary: Canary) -> None:
        """Divide the requests among versions anew."""
        self._canary = canary
        for name, group in self._groups.items():
            group.shares = share_of(canary, name, [lane.version for lane in group.lanes])

    def group(self, name: str) -> Group | None:
        return self._groups.get(name)

    def only_group(self) -> Group | None:
        """The group that a request without a model means: that of the one shard there is."""
        return self._only

    def _find_only(self) -> Group | None:
        groups = list(self._groups.values())
        if not groups:
            return None
        members = groups[0].members
        return groups[0] if all(group.members == members for group in groups[1:]) else None

    def pick(
        self,
        group: Group,
        now_s: float,
        tried: Collection[Target],
        key_name: str = "",
        keys: Sequence[int] = (),
        session: int = 0,
        tokens: int = 0,
    ) -> tuple[Target, Lane] | None:
        """The replica for the next attempt of a request, and its lane; None: there is none left."""
        lanes = group.lanes
        if len(lanes) == 1:
            lane = lanes[0]
            needed = self._needed(lane, tokens) if tokens else 0
            target = lane.pick(now_s, tried, self._rng, keys, session, needed)
            return None if target is None else (target, lane)
        if not lanes:
            return None
        first = self.lane_of(group, key_name)
        if first.closed:
            needed = self._needed(first, tokens)
            target = first.pick(now_s, tried, self._rng, keys, session, needed)
            if target is not None:
                return target, first
        # A version that is asked for, but has nothing to serve with, is no reason to refuse; nor
        # one whose replicas all failed, as long as another has some that did not.
        order = sorted(lanes, key=lambda lane: lane is not first)
        for lane in order:
            needed = self._needed(lane, tokens)
            if lane.closed:
                target = lane.pick(now_s, tried, self._rng, keys, session, needed)
            else:
                target = lane.probe(now_s, tried, needed)
            if target is not None:
                return target, lane
        for lane in order:
            target = lane.pick(now_s, tried, self._rng, keys, session, self._needed(lane, tokens))
            if target is not None:
                return target, lane
        return None

    def lane_of(self, group: Group, key_name: str) -> Lane:
        """The lane that a request with this key falls to, by the shares of the versions. The group
        has lanes."""
        point = point_of(self._canary, group.name, key_name, self._rng)
        return group.lanes[pick_share(group.shares, point) if group.shares else 0]

    @staticmethod
    def _needed(lane: Lane, tokens: int) -> int:
        """``tokens`` where they decide which replica can serve the request, else 0."""
        if not tokens or lane.lengths is None:
            return 0
        return tokens if tokens > lane.lengths[0] or tokens > _LONG_TOKENS else 0

    def succeeded(self, target: Target) -> None:
        _follow(target, target.breaker.success())

    def begins_well(self, target: Target) -> None:
        """The first bytes of a good answer are there."""
        _follow(target, target.breaker.begins_well())

    def failed(self, target: Target, now_s: float, *, fatal: bool = False) -> None:
        opens = target.breaker.failure(now_s, fatal=fatal)
        _follow(target, opens)
        if opens:
            self.on_eject(target)

    def told_nothing(self, target: Target, now_s: float) -> None:
        """A request ended without saying anything about its replica."""
        _follow(target, target.breaker.abandon_probe(now_s))

    def loads(self, loads: Mapping[str, EngineLoad], now_s: float) -> None:
        """What engines say of themselves, by replica."""
        for ident, load in loads.items():
            target = self._targets.get(ident)
            if target is not None:
                target.load = load
                target.load_at_s = now_s
                target.load_own = target.outstanding + target.elsewhere

    def target(self, ident: str) -> Target | None:
        return self._targets.get(ident)

    @property
    def names(self) -> list[str]:
        """Every served name, ready or not."""
        return list(self._groups)

    @property
    def groups(self) -> Iterable[Group]:
        return self._groups.values()

    @property
    def targets(self) -> Iterable[Target]:
        return self._targets.values()


def _takes(target: Target, tokens: int) -> bool:
    """Whether a request of so many tokens fits into its context."""
    length = target.replica.max_model_len
    return length is None or length >= tokens


def _follow(target: Target, changed: bool) -> None:
    """Its breaker was told something; ``changed``: it has opened or closed by that."""
    target.settle()
    if changed:
        for lane in target.lanes:
            lane.follow(target)


def _address(replica: Replica) -> tuple[str, str | None]:
    return replica.url, replica.key


def _forget_cache(target: Target) -> None:
    """Its engine is another process now: it has cached nothing yet."""
    for lane in target.lanes:
        if lane.affinity is not None:
            lane.affinity.forget(target)


# Prompts from here on look for a replica with room in its cache.
_LONG_TOKENS = 8192
