"""What routers counted of each shard, out of their ``/metrics``. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from exaslurm.autoscale.latency import Counts
from exaslurm.core.plan import Plan
from exaslurm.registry.router_pages import samples


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardCounts:
    """What one router has counted of one shard since it was started. ``busy_s``: how long requests
    were there. ``first_tokens``: how many took how long, by the upper bound of the bucket."""

    busy_s: float = 0.0
    first_tokens: Mapping[float, int] = field(default_factory=dict)


def shards_of_names(plan: Plan) -> dict[str, str]:
    """The shard (``model:shard``) behind each served name."""
    return {
        name: f"{model.name}:{shard.name}"
        for model in plan.models
        for shard in model.shards
        for name in shard.served_names
    }


def parse(page: str, shards: Mapping[str, str]) -> dict[str, ShardCounts]:
    """The figures of each shard on a router's page."""
    busy_s: dict[str, float] = {}
    running: dict[str, dict[float, int]] = {}
    for family, labels, value in samples(page):
        shard = shards.get(labels.get("model", ""))
        if shard is None:
            continue
        if family == "busy_seconds_total":
            busy_s[shard] = busy_s.get(shard, 0.0) + value
        elif family == "first_token_seconds_bucket":
            bounds = running.setdefault(shard, {})
            bound = float(labels["le"])
            bounds[bound] = bounds.get(bound, 0) + int(value)
    return {
        shard: ShardCounts(
            busy_s=busy_s.get(shard, 0.0), first_tokens=_each(running.get(shard, {}))
        )
        for shard in busy_s.keys() | running.keys()
    }


def added(shards: Iterable[ShardCounts]) -> tuple[float, Counts]:
    """What several routers counted together."""
    busy_s, tokens = 0.0, dict[float, int]()
    for counts in shards:
        busy_s += counts.busy_s
        for bound, count in counts.first_tokens.items():
            tokens[bound] = tokens.get(bound, 0) + count
    return busy_s, tuple(sorted(tokens.items()))


def since(now: ShardCounts, before: ShardCounts) -> ShardCounts:
    """What came on top; counts of a router never fall."""
    return ShardCounts(
        busy_s=max(0.0, now.busy_s - before.busy_s),
        first_tokens={
            bound: max(0, count - before.first_tokens.get(bound, 0))
            for bound, count in now.first_tokens.items()
        },
    )


def _each(running: Mapping[float, int]) -> dict[float, int]:
    """Counts of each bucket, from counts up to it."""
    found, below = {}, 0
    for bound in sorted(running, key=lambda bound: (math.isinf(bound), bound)):
        found[bound] = running[bound] - below
        below = running[bound]
    return found
