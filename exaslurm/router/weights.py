"""What weighs on a replica besides the requests that this router has sent there. Pure.

Everything is told in *requests*, so that it can be added to the router's own count: the choice
takes the replica with the smaller sum. Own requests are exact and of this moment; what an engine
said a while ago is neither, and a herd of routers that believe old figures runs from one replica to
the next. So figures fade, everything is bounded, and a replica that was slow is tried again.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import Final

from exaslurm.core.cell import EngineLoad

# Nothing weighs more, so that no replica is left out for good.
MOST = 256.0
# Whose penalty is so large gets requests only where there is no other; it is no measure of what is
# usual.
UNWANTED: Final = 1e5
# Figures count in full when fresh, and no more when so old.
FORGOTTEN_AFTER_S = 30.0
# What others have sent is the engine's count less our own; the two are not of the same moment.
_NOISE_SHARE, _NOISE_REQUESTS = 0.25, 2.0
# Up to here a full KV cache only means that the cache is used. Beyond, requests will be preempted:
# that costs a share of what runs, and a few requests even where little does.
_KV_FROM = 0.85
_KV_REQUESTS, _KV_SHARE = 8.0, 0.5
# Latencies differ with the prompts: only a replica that is clearly slower than its fellows is slow.
_SLOW_FROM, _SLOW_MOST = 1.5, 4.0
_SMOOTHING = 0.15
_LATENCY_FADES_S = 20.0


def penalty(
    load: EngineLoad | None,
    *,
    age_s: float,
    own: int,
    own_then: int | None = None,
    latency_s: float = 0.0,
    median_s: float = 0.0,
) -> float:
    """Requests to be added to the ``own`` outstanding ones of a replica: from 0 to ``MOST``.

    ``load`` was told ``age_s`` ago (None: never), when ``own_then`` (None: as many as now) were
    outstanding. ``latency_s`` is what its answers took of late until they began, ``median_s`` the
    same of all replicas of its lane (0: not known).
    """
    weight = 0.0
    if load is not None:
        freshness = 1.0 - age_s / FORGOTTEN_AFTER_S
        if freshness > 0.0:
            weight = min(freshness, 1.0) * _of_load(
                load, own, own if own_then is None else own_then
            )
    if latency_s > 0.0 and median_s > 0.0:
        weight += (slowness(latency_s, median_s) - 1.0) * (own + 1)
    return min(weight, MOST)


def _of_load(load: EngineLoad, own: int, own_then: int) -> float:
    then = load.running + load.waiting
    others = then - own_then - (_NOISE_SHARE * own_then + _NOISE_REQUESTS)
    # What has become of it, as far as this router knows: its own requests that ended wait no more,
    # and keep nothing in the cache.
    now = min(max(then - own_then + own, 0), then)
    # Those that wait do so because the engine has no room: one more waits behind them.
    weight = max(others, 0.0) + min(load.waiting, now)
    if load.kv_use > _KV_FROM and now:
        fullness = min((load.kv_use - _KV_FROM) / (1.0 - _KV_FROM), 1.0)
        cost = fullness * fullness * (_KV_REQUESTS + _KV_SHARE * load.running)
        weight += cost * now / then
    return weight


def slowness(latency_s: float, median_s: float) -> float:
    """How many times slower than its fellows a replica is, beyond what prompts explain: 1 (not at
    all) to 4."""
    if median_s <= 0.0:
        return 1.0
    return min(max(latency_s / median_s / _SLOW_FROM, 1.0), _SLOW_MOST)


def smooth(before_s: float, latency_s: float) -> float:
    """A latency that follows new measurements slowly; ``before_s`` 0: there was none."""
    return latency_s if before_s <= 0.0 else before_s + _SMOOTHING * (latency_s - before_s)


def forget(latency_s: float, median_s: float, elapsed_s: float) -> float:
    """The same latency ``elapsed_s`` later: a replica that gets no requests can prove nothing, so
    it comes back to what its fellows are like."""
    if latency_s <= 0.0 or median_s <= 0.0:
        return latency_s
    return median_s + (latency_s - median_s) * math.exp(-elapsed_s / _LATENCY_FADES_S)


def median(latencies_s: Iterable[float]) -> float:
    """The median of those that are known (above 0); 0 if fewer than three are: two replicas do not
    show which of them is the odd one."""
    known = [latency_s for latency_s in latencies_s if latency_s > 0.0]
    return statistics.median(known) if len(known) >= 3 else 0.0
