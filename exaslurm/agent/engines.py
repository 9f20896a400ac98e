"""All engines of this node: what is wanted against what runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from exaslurm.agent.children import Child
from exaslurm.agent.engine import Engine, EngineTools, child_name
from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.cell import EngineStatus
from exaslurm.errors import ExaslurmError

log = logging.getLogger(__name__)

# vLLM waits for the drain time by itself and then still has to end.
_END_MARGIN_S = 5.0


class Engines:
    """Level-triggered: ``want`` says what shall run, ``run`` makes it so, again and again."""

    def __init__(self, tools: EngineTools, changed: asyncio.Event) -> None:
        self._tools = tools
        self._changed = changed
        self._wanted: dict[str, ReplicaBinding] | None = None
        self._kill: frozenset[str] = frozenset()
        self._engines: dict[str, Engine] = {}
        self._stops: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()

    def want(self, replicas: Sequence[ReplicaBinding], kill: Iterable[str] = ()) -> None:
        """Exactly these replicas shall run here; those of ``kill`` end at once."""
        self._kill = frozenset(kill)
        self._wanted = {replica.id: replica for replica in replicas}
        self._reconcile(self._wanted)
        self._wake.set()

    def statuses(self) -> tuple[EngineStatus, ...]:
        """Every engine that there is, by replica."""
        return tuple(self._engines[name].status for name in sorted(self._engines))

    async def run(self) -> None:
        """For ever: bring what runs to what is wanted."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._wanted is not None:
                await self._end_strangers(self._wanted, self._tools.plan.timeouts.drain_s)
                self._reconcile(self._wanted)

    async def stop_all(self, drain_s: float) -> None:
        """End every engine, all at once; call it when ``run`` is cancelled."""
        self._wanted = {}
        for name in self._engines:
            self._stop(name, drain_s)
        await asyncio.gather(*self._stops.values(), return_exceptions=True)
        await self._end_strangers({}, drain_s)

    def _reconcile(self, wanted: dict[str, ReplicaBinding]) -> None:
        for name, engine in self._engines.items():
            now = wanted.get(name)
            if now != engine.binding:
                # Requests of a gang whose other parts are gone, or of another start, never end.
                lost = name in self._kill or (
                    now is not None and now.attempt != engine.binding.attempt
                )
                self._stop(name, None if lost else self._tools.plan.timeouts.drain_s)
        for name, binding in wanted.items():
            if name not in self._engines:
                self._engines[name] = Engine(binding, self._tools, self._changed.set)
                self._changed.set()

    def _stop(self, name: str, drain_s: float | None) -> None:
        """End an engine; None: at once."""
        if name not in self._stops:
            self._stops[name] = asyncio.create_task(self._stop_one(name, drain_s))

    async def _stop_one(self, name: str, drain_s: float | None) -> None:
        engine = self._engines[name]
        try:
            await engine.stop(0.0 if drain_s is None else drain_s + _END_MARGIN_S)
        except ExaslurmError as error:
            log.error("engine %s: not stopped: %s", name, error)
        finally:
            del self._engines[name]
            del self._stops[name]
            self._changed.set()
            self._wake.set()  # the same name may be wanted with another binding

    async def _end_strangers(self, wanted: dict[str, ReplicaBinding], drain_s: float) -> None:
        """End engines that an earlier agent started and nobody wants any more."""
        children = self._tools.children
        known = {child_name(name) for name in (*wanted, *self._engines)}
        strangers = [
            child
            for name in children.names()
            if name.startswith(child_name("")) and name not in known
            if (child := children.get(name)) is not None
        ]
        await asyncio.gather(*(self._end_stranger(child, drain_s) for child in strangers))

    async def _end_stranger(self, child: Child, drain_s: float) -> None:
        """As any other engine: what it has begun it may finish."""
        children = self._tools.children
        log.info("%s: not wanted any more", child.name)
        try:
            await children.end_session(child, drain_s + _END_MARGIN_S)
            await children.wait_exit(child, _END_MARGIN_S)
            await children.forget(child.name)
        except ExaslurmError as error:
            log.error("%s: not ended: %s", child.name, error)
