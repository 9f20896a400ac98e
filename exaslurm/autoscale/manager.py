"""Scaling, round by round of the supervisor.

What is wanted is in ``scale.json``; everything else is only remembered. Started anew, it begins to
look again, and changes nothing before it has seen enough.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from exaslurm.autoscale.figures import ShardCounts, added, parse, shards_of_names, since
from exaslurm.autoscale.policy import Rules, Signals, State, begin, step, told
from exaslurm.core.codec import loads
from exaslurm.core.plan import AutoscalePlan, Plan
from exaslurm.core.scale import Asked, Scale
from exaslurm.core.sharing import Counts, at_start, planned, share
from exaslurm.errors import StateError
from exaslurm.registry.router_pages import RouterPage, router_pages
from exaslurm.rundir import RunDir
from exaslurm.submit.lock import deployment_lock
from exaslurm.submit.records import add_history, write_scale
from exaslurm.util.files import read_text

log = logging.getLogger(__name__)

# Routers repeat every 5 s that somebody waits.
_ASKED_S = 15.0
_NO_COUNTS = ShardCounts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """A deployment at one moment, as far as scaling is concerned, by ``model:shard``. ``now_s``:
    seconds that only grow; ``wall_s``: Unix seconds. ``ready``: replicas that serve; ``load``:
    requests that their engines are at; ``kv_use``: how full their caches are, on average.
    ``living``: the cells that have a job. ``bring_up_s``: what a new replica takes until it
    serves."""

    now_s: float
    wall_s: float
    generation: int
    plan: Plan
    scale: Scale | None
    living: frozenset[str]
    ready: Mapping[str, int]
    load: Mapping[str, float] = field(default_factory=dict)
    kv_use: Mapping[str, float] = field(default_factory=dict)
    bring_up_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class AutoscaleManager:
    """Looks after the numbers of replicas of one deployment."""

    run_dir: RunDir
    ask: Callable[[RunDir], Mapping[str, RouterPage]] = router_pages
    _states: dict[str, State] = field(default_factory=dict)
    _seen: dict[str, Mapping[str, ShardCounts]] = field(default_factory=dict)
    _last_s: float | None = None
    _last_wall_s: float = 0.0
    # What a router's word said its time was, and when it was first read.
    _words: dict[str, tuple[float, float]] = field(default_factory=dict)

    def step(self, sight: Sight) -> bool:
        """Look, and write down what is wanted from now on; whether anything else is. StateError,
        DeploymentError (the lock is taken)."""
        before = sight.scale or at_start(sight.plan)
        if before is None:
            return False
        after, reasons = before, dict[str, str]()
        if sight.plan.autoscale is not None:
            after, reasons = self._decide(before, sight, sight.plan.autoscale)
        after = replace(after, cells=_divided(sight.plan, after, sight.living))
        if after == sight.scale:
            return False
        with deployment_lock(self.run_dir):
            if self.run_dir.read_scale() != sight.scale:
                return True  # somebody has decided otherwise meanwhile
            desired = self.run_dir.read_desired()
            if desired is None or not desired.run or desired.generation != sight.generation:
                return True
            for shard, reason in reasons.items():
                self._tell(shard, before, after, reason, sight)
            write_scale(self.run_dir, after)
        return True

    # --- what is decided -----------------------------------------------------------------------

    def _decide(
        self, scale: Scale, sight: Sight, plan: AutoscalePlan
    ) -> tuple[Scale, dict[str, str]]:
        signals = self._signals(sight, plan)
        for name, shard in plan.shards.items():
            wanted = scale.replicas.get(name, shard.most)
            state = self._states.get(name)
            if state is None or state.wanted != wanted:
                state = begin(wanted, sight.now_s)  # somebody has said so
            rules = Rules(
                least=shard.least,
                most=shard.most,
                up_at=plan.up_at,
                down_at=plan.down_at,
                cooldown_s=plan.cooldown_s,
                capacity=shard.capacity,
                idle_s=plan.idle_s,
                ttft_p95_s=shard.ttft_p95_s,
            )
            if name in signals and name not in scale.fixed:
                state = step(state, signals[name], rules)
            self._states[name] = state
        self._hold_models(scale, sight, plan)
        wanted_now = {name: self._states[name].wanted for name in plan.shards}
        reasons = {
            name: self._states[name].reason
            for name, count in wanted_now.items()
            if count != scale.replicas.get(name, plan.shards[name].most)
        }
        return replace(scale, replicas={**scale.replicas, **wanted_now}), reasons

    def _hold_models(self, scale: Scale, sight: Sight, plan: AutoscalePlan) -> None:
        """A model that somebody uses has at least so many replicas in all its shards."""
        for model in sight.plan.models:
            names = [f"{model.name}:{shard.name}" for shard in model.shards]
            total = sum(self._states[name].wanted for name in names)
            if not total and plan.idle_s is not None:
                continue
            reason = f"at least {plan.least_per_model} of model {model.name}"
            # What it had it keeps first, then the first shards get what is missing.
            for keep in (True, False):
                for name in names:
                    state, most = self._states[name], plan.shards[name].most
                    if name in scale.fixed:
                        continue
                    bound = min(most, scale.replicas.get(name, most)) if keep else most
                    more = min(plan.least_per_model - total, bound - state.wanted)
                    if more > 0:
                        total += more
                        state = told(state, state.wanted + more, reason, sight.now_s)
                        self._states[name] = state

    # --- what is seen --------------------------------------------------------------------------

    def _signals(self, sight: Sight, plan: AutoscalePlan) -> dict[str, Signals]:
        """What is known of each shard; nothing at first, since counts say something only by how
        they grow."""
        before_s, self._last_s = self._last_s, sight.now_s
        before_wall_s, self._last_wall_s = self._last_wall_s, sight.wall_s
        asked = self._asked(sight)
        pages = self.ask(self.run_dir)
        seen, grown = dict(self._seen), []
        shards = shards_of_names(sight.plan)
        silent = not pages
        for router, page in pages.items():
            if page.text is None:
                silent = True
                continue
            counts, last = parse(page.text, shards), self._seen.get(router)
            seen[router] = counts
            if last is None and (before_s is None or page.started_s < before_wall_s):
                silent = True  # it has counted before, nobody knows when
            else:
                last = last or {}
                grown.append(
                    {name: since(c, last.get(name, _NO_COUNTS)) for name, c in counts.items()}
                )
        self._seen = {name: counts for name, counts in seen.items() if name in pages}
        if before_s is None:
            return {name: _woken(sight, count) for name, count in asked.items()}
        passed_s = max(1e-3, sight.now_s - before_s)
        found = {}
        for name in plan.shards:
            busy_s, tokens = added(counts[name] for counts in grown if name in counts)
            in_flight = busy_s / passed_s
            if silent:  # what engines say is all that is known of it
                in_flight = max(in_flight, sight.load.get(name, 0.0))
            in_flight = max(in_flight, float(asked.get(name, 0)))
            found[name] = Signals(
                now_s=sight.now_s,
                ready=sight.ready.get(name, 0),
                in_flight=in_flight,
                kv_use=sight.kv_use.get(name, 0.0),
                first_tokens=tokens,
                asked=silent and self._states.get(name, _AWAKE).wanted > 0,
                bring_up_s=sight.bring_up_s.get(name, 0.0),
            )
        return found

    def _asked(self, sight: Sight) -> dict[str, int]:
        """How many requests wait for a first replica of which shards, by routers' own word, which
        they repeat. Their clocks may differ from this host's."""
        found: dict[str, int] = {}
        try:
            entries = sorted(os.listdir(self.run_dir.wake))
        except FileNotFoundError:
            return found
        for entry in entries:
            path = self.run_dir.wake / entry
            if entry.startswith(".") or path.suffix != ".json":
                continue
            try:
                asked = loads(Asked, read_text(path), where=str(path))
            except StateError as error:
                log.warning("%s", error)
                continue
            if self._is_new(entry, asked.time_s, sight):
                found[asked.shard] = asked.count
            else:
                with contextlib.suppress(OSError):
                    path.unlink()
        return found

    def _is_new(self, name: str, time_s: float, sight: Sight) -> bool:
        """Whether a router's word was not there for long; of the first one that is read, only its
        own time can tell."""
        known = self._words.get(name)
        if known is None:
            age_s = abs(sight.wall_s - time_s)
            self._words[name] = time_s, sight.now_s - age_s
            return age_s < _ASKED_S
        if known[0] != time_s:
            self._words[name] = time_s, sight.now_s
            return True
        return sight.now_s - known[1] < _ASKED_S

    # --- what is told --------------------------------------------------------------------------

    def _tell(self, shard: str, before: Scale, after: Scale, reason: str, sight: Sight) -> None:
        was = before.replicas.get(shard, planned(sight.plan)[shard])
        now = after.replicas[shard]
        log.info("%s: %d replicas, was %d: %s", shard, now, was, reason)
        add_history(
            self.run_dir,
            "scale",
            generation=sight.generation,
            plan_hash=sight.plan.hash,
            extra={
                "by": f"supervisor {os.getpid()} on {socket.gethostname()}",
                "shard": shard,
                "replicas": str(now),
                "before": str(was),
                "reason": reason,
            },
        )


_AWAKE = begin(1, 0.0)


def _woken(sight: Sight, count: int) -> Signals:
    return Signals(now_s=sight.now_s, ready=0, in_flight=float(count), asked=True)


def _divided(plan: Plan, scale: Scale, living: frozenset[str]) -> Mapping[str, Counts]:
    """How the replicas are divided among cells, all of them named."""
    return dict(_all_named(plan, share(plan, scale, living)))


def _all_named(plan: Plan, shares: Mapping[str, Counts | None]) -> Iterator[tuple[str, Counts]]:
    for name, counts in shares.items():
        if counts is None:
            sets = plan.cell(name).replica_sets
            yield name, {f"{item.model}:{item.shard}": item.count for item in sets}
        else:
            yield name, dict(counts)
