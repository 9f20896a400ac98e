"""Carrying failures out: whom each one meets, and when what it took away comes back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from exaslurm.core.turns import cell_of
from exaslurm.simulate.faults import Fault, Kind
from exaslurm.simulate.slurmctld import Job
from exaslurm.simulate.world import World
from exaslurm.util.waiting import set_within

log = logging.getLogger(__name__)

_MOST_LOST = 4
# The share of the time in which a slow file system does not answer, and the length of its pauses.
_SLOW, _PAUSE_S = 0.75, 0.6
_ARMED_S = 3.0
_TRIES = 12
# How long to look for a job that can be met.
_LOOK_FOR_S = 240.0


class Striker:
    """``spared`` are cells of which neither the job nor the controller is touched, so that what
    they are made of can be looked at for long. ``impaired`` counts what is out of order now that
    would tidy up after others; ``router_kills`` are times (monotonic, the machine's).
    ``notice_s`` is what a new time limit leaves to a job."""

    def __init__(self, world: World, spared: frozenset[str], notice_s: float = 900.0) -> None:
        self.done: Counter[Kind] = Counter()
        self.missed: Counter[Kind] = Counter()
        self.impaired = 0
        self.impaired_until_s = 0.0
        self.under_way = 0
        self.most_under_way = 0
        self.router_kills: list[float] = []
        # From now on the supervisor lives.
        self.spare_supervisor = False
        self.world = world
        self._spared = spared
        self._notice_s = notice_s
        self._lost: set[str] = set()

    @property
    def count(self) -> int:
        """How many have met somebody, and are over."""
        return sum(self.done.values())

    async def strike(self, fault: Fault) -> None:
        """Do it, and wait until what it took away is back."""
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            act = getattr(self, "_" + fault.kind.replace(" ", "_").replace("-", "_"))
            hit = await act(fault)
        except Exception:
            log.exception("%s", fault)
            hit = False
        finally:
            self.under_way -= 1
        (self.done if hit else self.missed)[fault.kind] += 1
        log.info("%d %s: %s", fault.number, fault.kind, "done" if hit else "nobody to meet")

    async def _lasts(self, fault: Fault) -> None:
        await asyncio.sleep(self.world.clock.machine_s(fault.lasts_s))

    @contextlib.contextmanager
    def _impairing(self) -> Iterator[None]:
        self.impaired += 1
        try:
            yield
        finally:
            self.impaired -= 1
            # What waited meanwhile is done in the rounds after it.
            self.impaired_until_s = self.world.clock.monotonic() + 60.0

    def is_impaired(self) -> bool:
        return self.impaired > 0 or self.world.clock.monotonic() < self.impaired_until_s

    # --- whom ------------------------------------------------------------------------------------

    def _pick(self, items: Sequence[str], dice: float) -> str | None:
        return items[int(dice * len(items))] if items else None

    def _nodes(self) -> list[str]:
        """Nodes that work for a job."""
        return [
            node
            for node in self.world.layout.names()
            if node not in self._lost and self.world.slurm.owner_of(node) is not None
        ]

    def _jobs(self) -> list[Job]:
        """Jobs that run, but of cells that are spared."""
        return [
            job
            for job in self.world.slurm.live()
            if job.state == "RUNNING" and cell_of(self.world.turns[job.id]) not in self._spared
        ]

    def _heads(self) -> set[str]:
        """First nodes of the jobs of spared cells."""
        world = self.world
        return {
            job.nodes[0]
            for job in world.slurm.live()
            if job.nodes and cell_of(world.turns[job.id]) in self._spared
        }

    async def _on_some_node(self, do: str, fault: Fault) -> bool:
        nodes = self._nodes()
        first = int(fault.dice[0] * len(nodes)) if nodes else 0
        for node in (nodes[first:] + nodes[:first])[:_TRIES]:
            if await self.world.ask(node, do, number=int(fault.dice[1] * 1000)):
                return True
        return False

    # --- what ------------------------------------------------------------------------------------

    async def _engine_killed(self, fault: Fault) -> bool:
        return await self._on_some_node("kill_engine", fault)

    async def _engine_hung(self, fault: Fault) -> bool:
        return await self._on_some_node("hang_engine", fault)

    async def _agent_killed(self, fault: Fault) -> bool:
        return await self._on_some_node("kill_agent", fault)

    async def _controller_killed(self, fault: Fault) -> bool:
        jobs = self._jobs()
        first = int(fault.dice[0] * len(jobs)) if jobs else 0
        for job in jobs[first:] + jobs[:first]:
            if await self.world.ask(job.nodes[0], "kill_controller"):
                return True
        return False

    async def _node_lost(self, fault: Fault) -> bool:
        world = self.world
        kept = self._heads()
        up = [n for n in world.layout.names() if n not in self._lost and n not in kept]
        node = self._pick(up, fault.dice[0])
        if node is None or len(self._lost) >= _MOST_LOST:
            return False
        self._lost.add(node)
        world.slurm.node_lost(node, world.clock.wall())
        await world.ask(node, "vanish")
        await self._lasts(fault)
        event = world.slurm.node_back(node, world.clock.wall())
        if event is not None:
            world.on(event)
        self._lost.discard(node)
        return True

    async def _some_job(self, dice: float, left_s: float = 0.0) -> Job | None:
        """One that runs, and has more than this before its limit; waits a little for one."""
        world = self.world
        until_s = time.monotonic() + world.clock.machine_s(_LOOK_FOR_S)
        while True:
            now_s = world.clock.wall()
            jobs = {j.id: j for j in self._jobs() if (j.limit_end_s or 0.0) - now_s > left_s}
            ident = self._pick(list(jobs), dice)
            if ident is not None:
                return jobs[ident]
            if time.monotonic() > until_s:
                return None
            await asyncio.sleep(_PAUSE_S)

    async def _job_cancelled(self, fault: Fault) -> bool:
        job = await self._some_job(fault.dice[0])
        if job is None:
            return False
        world = self.world
        _, events = world.slurm.command(["scancel", job.id], "", world.clock.wall())
        for event in events:
            world.on(event)
        return True

    async def _wall_time_reached(self, fault: Fault) -> bool:
        world = self.world
        job = await self._some_job(fault.dice[0], 2 * self._notice_s)
        if job is None:
            return False
        now_s = world.clock.wall()
        world.slurm.set_limit(job.id, now_s - (job.start_s or now_s) + self._notice_s)
        until_s = time.monotonic() + world.clock.machine_s(self._notice_s + 120.0)
        while not job.is_over and time.monotonic() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(_PAUSE_S)
        return True

    async def _router_worker_killed(self, _fault: Fault) -> bool:
        """The younger one, so that the other can be looked at for long."""
        workers = self.world.workers()
        if len(workers) < 2:
            return False
        self.router_kills.append(time.monotonic())
        with contextlib.suppress(ProcessLookupError):
            os.kill(workers[-1], signal.SIGKILL)
        return True

    async def _supervisor_killed(self, fault: Fault) -> bool:
        """In the middle of an effect, if there is one soon; else wherever it is."""
        world = self.world
        process = world.supervisor
        if self.spare_supervisor or process is None or process.returncode is not None:
            return False
        with self._impairing():
            world.shot.clear()
            world.armed = "before" if fault.dice[0] < 0.5 else "after"
            await set_within(world.shot, _ARMED_S)
            world.armed = ""
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            await self._lasts(fault)
            await world.start_supervisor()
        return True

    async def _slurmctld_silent(self, fault: Fault) -> bool:
        slurm = self.world.slurm
        if slurm.silent:
            return False
        with self._impairing():
            slurm.silent = True
            try:
                await self._lasts(fault)
            finally:
                slurm.silent = False
        return True

    async def _file_system_slow(self, fault: Fault) -> bool:
        world = self.world
        if not world.has_shared:
            return False
        with self._impairing():
            until_s = time.monotonic() + world.clock.machine_s(fault.lasts_s)
            try:
                while time.monotonic() < until_s:
                    world.file_system(go=False)
                    await asyncio.sleep(_SLOW * _PAUSE_S)
                    world.file_system(go=True)
                    await asyncio.sleep((1 - _SLOW) * _PAUSE_S)
            finally:
                world.file_system(go=True)
        return True
