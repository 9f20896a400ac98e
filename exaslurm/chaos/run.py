"""One run: a load, a fault in the middle of it, its end, and figures of all that."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from exaslurm.chaos.faults import Fault
from exaslurm.chaos.figures import Figures, figures
from exaslurm.chaos.load import Load
from exaslurm.chaos.strength import PARTS, Before, same_engines
from exaslurm.chaos.undo import Mending
from exaslurm.errors import ExaslurmError
from exaslurm.status.model import DeploymentStatus

CHAOS_SCHEMA: Literal["exaslurm/chaos/1"] = "exaslurm/chaos/1"
_LOOK_S = 0.5
_LOOK_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds: load before the fault, load after everything is well again, the time until it must
    be, and how long the fault is held (None: as its kind says)."""

    before_s: float = 3.0
    after_s: float = 3.0
    timeout_s: float = 300.0
    held_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result. ``to_strength_s``: from the fault until all replicas were ready again and what
    was killed had come back (None: not in time, then ``missing`` says what was). ``left``: what
    could not be mended."""

    schema: Literal["exaslurm/chaos/1"] = CHAOS_SCHEMA
    deployment: str
    site: str
    fault: str
    victims: tuple[str, ...]
    time_s: float
    did: tuple[str, ...]
    mended: tuple[str, ...]
    left: tuple[str, ...]
    held_s: float
    figures: Figures
    to_strength_s: float | None
    missing: str | None
    replicas_ready: int
    replicas_planned: int
    engines_same: int
    engines_changed: int
    simulated: bool

    @property
    def is_well(self) -> bool:
        """Nothing that had not begun failed, and everything is as before."""
        failed = self.figures.failed
        lost = failed["not_begun"] + failed["begun_cut"] + failed["router_lost"]
        return not lost and self.to_strength_s is not None and not self.left


@dataclass
class Run:
    """``look`` gives the status, ``processes`` the pids of what a fault ends (both block);
    ``retries`` what the routers have sent to another replica so far."""

    fault: Fault
    load: Load
    mending: Mending
    timing: Timing
    look: Callable[[], DeploymentStatus]
    processes: Callable[[], Mapping[str, int]]
    retries: Callable[[], int | None]
    talk: Callable[[str], None]
    _before: Before | None = None
    _fault_s: float = 0.0
    _strong_s: float | None = None
    _missing: str | None = "it was not looked"

    async def go(self) -> Report:
        """The whole of it. What was broken is mended, however this ends."""
        before = await self._in_thread(self.look)
        processes = await self._in_thread(self.processes)
        self._before = Before(
            kind=self.fault.kind,
            status=before,
            victims=self.fault.victims,
            processes=processes,
        )
        retried = await self._in_thread(self.retries)
        mended: list[str] = []
        left: list[str] = []
        begun_s = time.time()
        try:
            async with self.load:
                await self.load.warm()
                await self._in_thread(self.fault.prepare)
                await asyncio.sleep(self.timing.before_s)
                begun_s, self._fault_s = time.time(), time.monotonic()
                await self._in_thread(lambda: self.fault.do(self.mending))
                for text in self.fault.did:
                    self.talk(text)
                async with self._later():
                    held_s = await self._hold()
                    mended, left = await self._in_thread(self.mending.mend)
                    for text in mended:
                        self.talk(f"mended: {text}")
                    await self._recover()
                await asyncio.sleep(self.timing.after_s)
        finally:
            self.fault.disarm()
            # After Ctrl-C: what is mended already is no longer on its list.
            more, left = self.mending.mend()
            for text in more:
                self.talk(f"mended: {text}")
            mended += more
        now = await self._in_thread(self.look)
        same, changed = same_engines(before, now)
        after = await self._in_thread(self.retries)
        return Report(
            deployment=before.deployment,
            site=before.site,
            fault=self.fault.kind.name,
            victims=tuple(victim.name for victim in self.fault.victims),
            time_s=round(begun_s, 3),
            did=tuple(self.fault.did),
            mended=tuple(mended),
            left=tuple(left),
            held_s=round(held_s, 1),
            figures=figures(
                self.load.asked,
                self.load.silences,
                self._fault_s,
                router_died=self.fault.kind.hits == "router",
                retried=_more(retried, after),
            ),
            to_strength_s=self._strong_s,
            missing=self._missing,
            replicas_ready=now.replicas_ready,
            replicas_planned=now.replicas_planned,
            engines_same=same,
            engines_changed=changed,
            simulated=before.simulated,
        )

    # --- the fault's time ---------------------------------------------------------------------

    async def _hold(self) -> float:
        """Leave the fault as it is for its time, or until all is well in spite of it; how long
        that was."""
        given = self.timing.held_s if self.timing.held_s is not None else self.fault.kind.held_s
        until_s = self._fault_s + (self.timing.timeout_s if given is None else given)
        while time.monotonic() < until_s:
            await self._glance(held=True)
            if given is None and self._strong_s is not None:
                break
            await asyncio.sleep(min(_LOOK_S, max(0.0, until_s - time.monotonic())))
        return time.monotonic() - self._fault_s

    async def _recover(self) -> None:
        """Wait until all is well, after everything is mended."""
        until_s = max(self._fault_s + self.timing.timeout_s, time.monotonic() + 2 * _LOOK_S)
        await self._glance()
        while self._strong_s is None and time.monotonic() < until_s:
            await asyncio.sleep(_LOOK_S)
            await self._glance()

    async def _glance(self, *, held: bool = False) -> None:
        """Look once, and remember since when all is well."""
        assert self._before is not None
        looked_s = time.monotonic()
        try:
            status = await self._in_thread(self.look)
            processes = await self._in_thread(self.processes)
            missing = self._before.missing(status, processes, held=held)
        except ExaslurmError as error:
            missing = str(error)
        except asyncio.TimeoutError:
            missing = f"no status in {_LOOK_TIMEOUT_S:g} s"
        if missing is not None:
            self._strong_s = None
        elif self._strong_s is None:
            self._strong_s = round(looked_s - self._fault_s, 2)
        if missing != self._missing and missing is not None:
            self.talk(f"{looked_s - self._fault_s:6.1f} s  {missing}")
        self._missing = missing

    @contextlib.asynccontextmanager
    async def _later(self) -> AsyncIterator[None]:
        """Meanwhile, what follows on the fault after its grace."""
        if not self.fault.has_more:
            yield
            return

        async def follow() -> None:
            await asyncio.sleep(self.fault.options.grace_s)
            await self._in_thread(self.fault.go_on)

        task = asyncio.create_task(follow())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await asyncio.wait_for(asyncio.to_thread(work), _LOOK_TIMEOUT_S)


def parts_of(kind_name: str) -> tuple[str, ...]:
    """Names of what a fault ends on a node, as init calls it."""
    return PARTS.get(kind_name, ())


def _more(before: int | None, after: int | None) -> int | None:
    """How much a counter has grown; one that began anew counts from nothing."""
    if after is None:
        return None
    return after - before if before is not None and after >= before else after
