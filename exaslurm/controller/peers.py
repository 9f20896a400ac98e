"""What the controller sends: desired states to agents, real requests and probes to engines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp

from exaslurm.controller import canary
from exaslurm.controller.cell import Cell
from exaslurm.controller.replicas import Replica
from exaslurm.core.cell import DesiredState
from exaslurm.core.codec import dumps
from exaslurm.util.clock import MACHINE, Clock

log = logging.getLogger(__name__)

PUSH_S = 3.0
_CANARY_S = 120.0
_PROBES, _PROBE_S, _PROBE_EVERY_S = 2, 3.0, 5.0
# A real request of one token waits for those before it.
_GANG_PROBE_S = 30.0


class Peers:
    """Sends what is due, each request in a task of its own; ``changed`` after each result."""

    def __init__(
        self,
        cell: Cell,
        session: aiohttp.ClientSession,
        key: str,
        changed: Callable[[], None],
        clock: Clock = MACHINE,
    ) -> None:
        self._cell = cell
        self._session = session
        self._key = key
        self._changed = changed
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._pushed: dict[str, int] = {}
        self._probe_due_s: dict[str, float] = {}
        self._asked: set[str] = set()

    def has_fetched(self, node: str, version: int) -> None:
        """A report was answered with this version: it need not be pushed."""
        self._pushed[node] = max(version, self._pushed.get(node, 0))

    def push(self) -> None:
        """Send desired states that no report has fetched; reports fetch what this misses."""
        for node in self._cell.members.known():
            desired = self._cell.book.get(node.name)
            if node.report is None or desired.version <= self._pushed.get(node.name, 0):
                continue
            self._pushed[node.name] = desired.version
            facts = node.report.facts
            self._spawn(self._put(f"http://{facts.address}:{facts.agent_port}", desired))

    def send_canaries(self, now: float) -> None:
        """Send a real request to each engine that has become healthy."""
        for replica in self._cell.canaries_due(now):
            replica.canary_runs = True
            self._spawn(self._canary(replica))

    def probe_silent(self, now: float) -> None:
        """An agent that says nothing is no reason to move replicas that serve."""
        for replica in self._cell.silent_replicas(now):
            if now >= self._probe_due_s.get(replica.id, 0.0):
                self._probe_due_s[replica.id] = now + _PROBE_EVERY_S
                self._spawn(self._probe(replica))

    async def settle(self, *, timeout_s: float) -> None:
        """Wait for what is under way."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout_s)

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _put(self, url: str, desired: DesiredState) -> None:
        try:
            async with self._session.put(
                url + "/v1/desired",
                data=dumps(desired),
                headers={
                    "Authorization": f"Bearer {self._key}",
                    "Content-Type": "application/json",
                },
                timeout=aiohttp.ClientTimeout(total=PUSH_S),
            ) as answer:
                if answer.status >= 300:
                    log.warning("%s refused its desired state: %d", url, answer.status)
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            log.info("%s: desired state not delivered (%s)", url, str(error) or repr(error))

    async def _canary(self, replica: Replica) -> None:
        process = replica.process
        if process is None:
            replica.canary_runs = False
            return
        name = replica.shard.served_names[0]
        cause = await canary.send(
            self._session, replica.url, self._key, replica.model, name, timeout_s=_CANARY_S
        )
        if cause is not None:
            log.warning("%s: canary: %s", replica.id, cause)
        self._cell.on_canary(replica, process, cause, self._clock.monotonic())
        self._changed()

    async def _probe(self, replica: Replica) -> None:
        place = replica.binding
        if replica.gang is not None:
            await self._probe_gang(replica)
            return
        for _ in range(_PROBES):
            if await canary.is_healthy(self._session, replica.url, timeout_s=_PROBE_S):
                replica.unreachable = None
                return
        silent = self._cell.silent_replicas(self._clock.monotonic())
        if replica.binding is place and replica in silent:
            replica.unreachable = f"{place.node} is silent and the engine there does not answer"
            self._changed()

    async def _probe_gang(self, replica: Replica) -> None:
        """/health of the first rank is 200 while the others are gone: only an answer tells that
        all are there."""
        if replica.id in self._asked:
            return  # that question has more time than there is between two looks
        place = replica.binding
        name = replica.shard.served_names[0]
        self._asked.add(replica.id)
        try:
            cause = await canary.send(
                self._session, replica.url, self._key, replica.model, name, timeout_s=_GANG_PROBE_S
            )
        finally:
            self._asked.discard(replica.id)
        now = self._clock.monotonic()
        node = self._cell.silent_node(replica, now)
        if cause is not None and node is not None and replica.binding is place:
            self._cell.gang_lost(replica, f"{node} is silent and {cause}", node, now)
            self._changed()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("unforeseen", exc_info=task.exception())
