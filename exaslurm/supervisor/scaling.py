"""Scaling as a manager of the supervisor: what the supervisor sees, in scaling's words."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from exaslurm.autoscale.manager import AutoscaleManager, Sight
from exaslurm.core.cell import PhaseTimes, ReplicaStatus
from exaslurm.core.plan import Plan
from exaslurm.core.turns import cell_of
from exaslurm.supervisor.observe import Look
from exaslurm.supervisor.timing import PERCENTILE, expected_s, percentile


@dataclass(frozen=True, slots=True)
class Scaling:
    """See ``loop.Manager``. ``monotonic``: seconds that only grow, whatever happens to the host's
    clock: a jump of that is no quiet time, and no rush."""

    manager: AutoscaleManager
    monotonic: Callable[[], float] = time.monotonic

    def step(self, look: Look) -> bool:
        """Look after the numbers of replicas; whether something else is wanted now."""
        generation = look.wish.desired.generation
        plan = look.plans[generation]
        if plan.autoscale is None and look.wish.scale is None:
            return False
        turns = [turn for cell in look.world.cells for turn in cell.turns]
        staying = [turn for turn in turns if turn.is_live and turn.drain_s is None]
        living = frozenset(cell_of(t.name) for t in staying if t.generation == generation)
        serving = [
            replica
            for turn in staying
            if turn.name in look.states
            for replica in look.states[turn.name].replicas
            if replica.state == "ready"
        ]
        sight = Sight(
            now_s=self.monotonic(),
            wall_s=look.now_s,
            generation=generation,
            plan=plan,
            scale=look.wish.scale,
            living=living,
            ready=Counter(map(_shard, serving)),
            load=_load(serving),
            kv_use=_kv_use(serving),
            bring_up_s=_bring_up_s(plan, living, serving, expected_s(turns)),
        )
        return self.manager.step(sight)


def _shard(replica: ReplicaStatus) -> str:
    return f"{replica.model}:{replica.shard}"


def _load(replicas: list[ReplicaStatus]) -> dict[str, float]:
    found: dict[str, float] = {}
    for replica in replicas:
        if replica.load is not None:
            count = replica.load.running + replica.load.waiting
            found[_shard(replica)] = found.get(_shard(replica), 0.0) + count
    return found


def _kv_use(replicas: list[ReplicaStatus]) -> dict[str, float]:
    uses: dict[str, list[float]] = {}
    for replica in replicas:
        if replica.load is not None:
            uses.setdefault(_shard(replica), []).append(replica.load.kv_use)
    return {shard: sum(found) / len(found) for shard, found in uses.items()}


def _bring_up_s(
    plan: Plan, living: frozenset[str], replicas: list[ReplicaStatus], new_cell_s: float
) -> Mapping[str, float]:
    """What a new replica takes until it serves, as observed: on the nodes that there are, or in a
    new cell where these are full."""
    ready = Counter(map(_shard, replicas))
    room: Counter[str] = Counter()
    for cell in plan.cells:
        if cell.name in living:
            room.update({f"{item.model}:{item.shard}": item.count for item in cell.replica_sets})
    names = {f"{item.model}:{item.shard}" for cell in plan.cells for item in cell.replica_sets}
    found = {}
    for name in names:
        took = [_seconds(replica.phases) for replica in replicas if _shard(replica) == name]
        full = ready[name] >= room[name]
        found[name] = max(percentile(took, PERCENTILE), new_cell_s if full else 0.0)
    return found


def _seconds(phases: PhaseTimes) -> float:
    return sum(part or 0.0 for part in (phases.stage_s, phases.load_s, phases.warm_up_s))
