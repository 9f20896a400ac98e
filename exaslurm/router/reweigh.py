"""Keeps what weighs on replicas up to date: figures of engines, own measurements, other routers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from exaslurm.errors import StateError
from exaslurm.router.loads import NO_SLOT, Loads
from exaslurm.router.table import Group, Target
from exaslurm.router.weights import UNWANTED, forget, median, penalty

# That of weight 0 is unwanted, whatever else is said of it.
_LEAST_WEIGHT = 0.1 / UNWANTED


class Weigher:
    """Sets ``Target.penalty``. ``loads``: the counts that routers of this host share, if any."""

    def __init__(self, loads: Loads | None = None) -> None:
        self._loads = loads
        self._slots: list[tuple[Target, int]] = []
        self._unshared: list[Target] = []
        self._weighed_s: float | None = None

    def retain(self, targets: Iterable[Target]) -> None:
        """These are the replicas from now on."""
        loads = self._loads
        if loads is None:
            return
        self._unshared = targets = list(targets)
        with contextlib.suppress(StateError):  # somebody has the lock: soon
            slots = loads.retain(target.ident for target in targets)
            self._slots = [(target, slots.get(target.ident, NO_SLOT)) for target in targets]
            self._unshared = []

    def share(self) -> None:
        """Tell the other routers what this one has sent, and learn what they have."""
        loads = self._loads
        if loads is None:
            return
        if self._unshared:
            self.retain(self._unshared)
        mine, others = loads.mine, loads.others()
        height = len(others)
        for target, slot in self._slots:
            mine[slot] = target.outstanding
            elsewhere = others[slot] if slot < height else 0
            if elsewhere != target.elsewhere:
                target.penalty += elsewhere - target.elsewhere
                target.elsewhere = elsewhere

    def weigh(self, groups: Iterable[Group], now_s: float) -> None:
        """Weigh every replica anew."""
        elapsed_s = 0.0 if self._weighed_s is None else now_s - self._weighed_s
        self._weighed_s = now_s
        for group in groups:
            for lane in group.lanes:
                typical_s = median(target.latency_s for target in lane.usable)
                for target in lane.usable:
                    if target.lanes[0] is not lane:
                        continue  # it has several names, and was weighed by another
                    target.latency_s = forget(target.latency_s, typical_s, elapsed_s)
                    own = target.outstanding + target.elsewhere
                    weight = target.replica.weight
                    if target.load is None and not typical_s and weight == 1.0:
                        # Nothing is known; what was known before counts no more.
                        target.penalty = float(target.elsewhere)
                        continue
                    target.penalty = target.elsewhere + penalty(
                        target.load,
                        age_s=now_s - target.load_at_s,
                        own=own,
                        own_then=target.load_own,
                        latency_s=target.latency_s,
                        median_s=typical_s,
                    )
                    if weight != 1.0:
                        # Twice the weight: it counts as full as the others with twice as much.
                        target.penalty += (own + 1) * (1.0 / max(weight, _LEAST_WEIGHT) - 1.0)
