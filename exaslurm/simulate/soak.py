"""One run: a deployment under load, failures one after the other, and what came of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from exaslurm.chaos.asked import Asked, classify
from exaslurm.chaos.load import Load, LoadPlan
from exaslurm.core.cell import CellState
from exaslurm.core.turns import cell_of, number_of
from exaslurm.errors import NotReadyError
from exaslurm.simulate import proc
from exaslurm.simulate.faults import faults
from exaslurm.simulate.layout import Layout
from exaslurm.simulate.ledger import Ledger, doubled
from exaslurm.simulate.slope import Sample, slope
from exaslurm.simulate.strike import Striker
from exaslurm.simulate.world import World
from exaslurm.util.clock import Clock

log = logging.getLogger(__name__)

# What routers remember of prompts is full soon, and grows no more.
_OWN_PROMPTS = 40
FIGURES = ("mem_mib", "descriptors", "threads")
_LOOK_S = 2.0
# Around the kill of a router's worker, the connections to it may break.
_KILL_WINDOW_S = 1.5
_MOST_SAMPLES = 20
_MANY = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What to do. On the simulation's clock: ``every_s`` is the mean time between failures, of
    which none lasts longer than ``most_s``; ``settle_s`` is how long the end may take until all
    replicas are ready again, and ``notice_s`` what a job has left when its limit is made shorter.
    """

    directory: Path
    layout: Layout
    failures: int
    factor: float
    every_s: float
    seed: int = 1
    concurrency: int = 12
    rate_per_s: float = 12.0
    shared: bool = True
    settle_s: float = 1800.0
    notice_s: float = 900.0
    most_s: float = 300.0

    @property
    def supervisor_until(self) -> int:
        """After so many failures of a long run the supervisor is spared, so that it can be looked
        at for long."""
        return self.failures if self.failures < _MANY else int(0.6 * self.failures)


@dataclass
class Watch:
    """What is looked at all the time."""

    world: World
    striker: Striker
    load: Load
    ledger: Ledger = field(default_factory=Ledger)
    classes: Counter[str] = field(default_factory=Counter)
    reconnected: int = 0
    slowest_s: float = 0.0
    words: list[str] = field(default_factory=list)
    samples: dict[tuple[str, str], list[Sample]] = field(default_factory=dict)
    ready: int = 0
    least_ready: int | None = None
    states: Mapping[str, CellState] = field(default_factory=dict)

    async def run(self) -> None:
        """Look every two seconds, until cancelled."""
        before_s = self.world.clock.monotonic()
        while True:
            await self.look()
            now_s = self.world.clock.monotonic()
            serving = to_hand_over(self.states)
            self.ledger.look(serving, now_s - before_s, impaired=self.striker.is_impaired())
            before_s = now_s
            await asyncio.sleep(_LOOK_S)

    async def look(self) -> None:
        """At replicas, requests and processes, once."""
        self.states = await asyncio.to_thread(self.world.states)
        self.ready = sum(
            replica.state == "ready" for state in self.states.values() for replica in state.replicas
        )
        if self.least_ready is not None:
            self.least_ready = min(self.least_ready, self.ready)
        self.count()
        await self._measure()

    def count(self, *, last: bool = False) -> None:
        """Take the requests that have ended. Those that have just ended wait a little: it may
        turn out that a router was killed then."""
        now_s = time.monotonic()
        left = []
        for item in self.load.asked:
            if not item.ended_s or (not last and now_s - item.ended_s < 2 * _KILL_WINDOW_S):
                left.append(item)
            else:
                self._count(item)
        self.load.asked[:] = left

    def _count(self, item: Asked) -> None:
        near = any(
            item.asked_s - _KILL_WINDOW_S < kill_s < item.ended_s + _KILL_WINDOW_S
            for kill_s in self.striker.router_kills
        )
        found: str = classify(item, router_died=near)
        if item.reconnected and not near:
            found = "not_begun"  # nothing that was known of had killed its router
        self.classes[found] += 1
        self.reconnected += item.reconnected
        self.slowest_s = max(self.slowest_s, item.ended_s - item.asked_s)
        if found not in ("ok", "begun_event"):
            kind = "stream" if item.stream else "plain"
            words = (
                f"{found} {kind} status {item.status} after {item.ended_s - item.asked_s:.1f} s"
                f" at {self.world.clock.wall():.0f} ({item.replica}): {item.said[:200]}"
            )
            log.warning("request: %s", words)
            if len(self.words) < _MOST_SAMPLES:
                self.words.append(words)

    async def _measure(self) -> None:
        world, at_s = self.world, time.monotonic()
        pids: list[tuple[str, int]] = []
        if world.router is not None:
            pids.append(("router", world.router.pid))
            pids += [("router worker", pid) for pid in world.workers()]
        if world.supervisor is not None and world.supervisor.returncode is None:
            pids.append(("supervisor", world.supervisor.pid))
        for job in world.slurm.live():
            if job.state == "RUNNING":
                seen = await world.ask(job.nodes[0], "look")
                if seen and seen["controller"]:
                    pids.append(("controller", seen["controller"]))
        for role, pid in pids:
            figures = proc.figures(pid)
            if figures is None:
                continue
            for name in FIGURES:
                sample = Sample(
                    process=str(pid), at_s=at_s, age_s=figures["age_s"], value=figures[name]
                )
                self.samples.setdefault((role, name), []).append(sample)


async def soak(run: Run) -> dict[str, Any]:
    """Run it; the figures. NotReadyError if the deployment does not come up."""
    world = World(run.directory, run.layout, Clock(run.factor, time.time()), shared=run.shared)
    begun_s = time.monotonic()
    try:
        await world.start()
        return await _run(run, world, begun_s)
    finally:
        await world.close()


async def _run(run: Run, world: World, begun_s: float) -> dict[str, Any]:
    spared = frozenset(["c000", "c001"] if run.layout.cells > 3 else ["c000"])
    striker = Striker(world, spared, run.notice_s)
    key = await asyncio.to_thread(world.client_key)
    plan = LoadPlan(model="pretend", concurrency=run.concurrency, rate_per_s=run.rate_per_s,
                    stream_share=0.5, max_tokens=40, own_prompts=_OWN_PROMPTS)  # fmt: skip
    load = Load(plan=plan, address=lambda: world.url + "/v1", key=key, reconnects=True)
    watch = Watch(world, striker, load)
    await _until_full(watch, run.settle_s)
    watch.least_ready = watch.ready
    log.info("all %d replicas are ready: the load begins", watch.ready)
    async with load:
        await load.warm()
        looking = world.spawn(watch.run())
        first_s = time.monotonic()
        await _strike(run, striker, first_s)
        struck_s = time.monotonic()
        while not looking.done():
            looking.cancel()
            await asyncio.wait([looking], timeout=_LOOK_S)
        back_s = await _until_full(watch, run.settle_s, must=False)
    watch.count(last=True)
    return report(run, watch, first_s, struck_s, back_s, begun_s)


async def _strike(run: Run, striker: Striker, first_s: float) -> None:
    """One failure after the other, until so many have met somebody and are over."""
    world = striker.world
    under_way: set[asyncio.Task[None]] = set()
    for fault in faults(run.every_s, seed=run.seed, most_s=run.most_s):
        due_s = first_s + world.clock.machine_s(fault.at_s)
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        while under_way and striker.count + len(under_way) >= run.failures:
            _, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
        under_way = {task for task in under_way if not task.done()}
        if striker.count >= run.failures:
            return
        striker.spare_supervisor = striker.count >= run.supervisor_until
        under_way.add(world.spawn(striker.strike(fault)))


async def _until_full(watch: Watch, limit_s: float, *, must: bool = True) -> float | None:
    """Wait for one turn of each cell with all its replicas ready, and no other; how long it took
    on the simulation's clock. None (or NotReadyError) if it takes too long."""
    world = watch.world
    begun_s = world.clock.monotonic()
    while True:
        await watch.look()
        if _is_full(watch):
            return world.clock.monotonic() - begun_s
        if world.clock.monotonic() - begun_s > limit_s:
            if must:
                raise NotReadyError(f"{watch.ready} of {world.layout.replicas} replicas are ready")
            return None
        await asyncio.sleep(_LOOK_S / 2)


def _is_full(watch: Watch) -> bool:
    turns = Counter(cell_of(name) for name, state in watch.states.items() if serves(state))
    whole = all(state.phase == "serving" for state in watch.states.values())
    one_each = len(turns) == watch.world.layout.cells and set(turns.values()) == {1}
    return whole and one_each and watch.ready == watch.world.layout.replicas


def to_hand_over(states: Mapping[str, CellState]) -> list[str]:
    """The turns that serve, of cells whose newest turn does so in full: from then on the others
    are not needed. A newcomer that lacks something takes nothing over."""
    newest: dict[str, str] = {}
    for turn in states:
        name = cell_of(turn)
        newest[name] = max(turn, newest.get(name, turn), key=number_of)
    return [
        turn
        for turn, state in states.items()
        if states[newest[cell_of(turn)]].phase == "serving" and serves(state)
    ]


def serves(state: CellState) -> bool:
    """Whether any of its replicas takes requests."""
    return any(replica.state == "ready" for replica in state.replicas)


def report(
    run: Run,
    watch: Watch,
    first_s: float,
    struck_s: float,
    back_s: float | None,
    begun_s: float,
) -> dict[str, Any]:
    """The one line."""
    world, striker = watch.world, watch.striker
    since_s = first_s + 0.25 * (struck_s - first_s)
    growth: dict[str, Any] = {}
    for (role, name), samples in sorted(watch.samples.items()):
        found = slope(samples, since_s=since_s)
        if found is not None:
            growth.setdefault(role, {})[name] = {k: round(v, 3) for k, v in asdict(found).items()}
    return {
        "schema": "exaslurm/soak/1",
        "nodes": run.layout.nodes,
        "cells": run.layout.cells,
        "replicas": run.layout.replicas,
        "factor": run.factor,
        "seed": run.seed,
        "failures": striker.count,
        "missed": sum(striker.missed.values()),
        "by_kind": dict(striker.done),
        "at_once": striker.most_under_way,
        "machine_s": round(time.monotonic() - begun_s, 1),
        "failing_s": round(struck_s - first_s, 1),
        "simulated_h": round((struck_s - first_s) * run.factor / 3600.0, 2),
        "requests": sum(watch.classes.values()),
        "classes": dict(watch.classes),
        "reconnected": watch.reconnected,
        "slowest_s": round(watch.slowest_s, 2),
        "least_ready": watch.least_ready,
        "full_again_s": None if back_s is None else round(back_s, 1),
        "unforeseen_ends": world.unforeseen,
        "jobs": len(world.slurm.jobs),
        "jobs_live": len(world.slurm.live()),
        "doubled": doubled(world.turns),
        "both_serve_s": round(watch.ledger.longest_s, 1),
        "both_too_long": watch.ledger.too_long,
        "commands": dict(world.slurm.calls),
        "growth_per_h": growth,
        "words": watch.words,
    }
