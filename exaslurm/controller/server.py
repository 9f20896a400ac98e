"""The controller process: the state machine, with its I/O around it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from exaslurm.bind.binder import bind_cell
from exaslurm.controller import canary
from exaslurm.controller.cell import Cell
from exaslurm.controller.http import Surface
from exaslurm.controller.memory import ControllerMemory
from exaslurm.controller.publish import Publisher
from exaslurm.controller.ray_watch import RayWatch
from exaslurm.controller.replicas import Replica
from exaslurm.core.cell import AgentReport, CellRecord, DesiredState
from exaslurm.core.codec import dumps
from exaslurm.core.facts import NodeFacts
from exaslurm.errors import ExaslurmError
from exaslurm.rundir import GenerationDir, RunDir
from exaslurm.util.files import write_atomic
from exaslurm.util.iothread import IoThread

log = logging.getLogger(__name__)

_TICK_S = 1.0
_FILE_S = 10.0
_PUSH_S = 3.0
_CANARY_S = 120.0
# How long a failed cell can still be asked what is wrong before it ends its job.
FAILED_LINGER_S = 30.0


class Controller:
    """Runs one cell until it is stopped."""

    def __init__(
        self,
        cell: Cell,
        run_dir: RunDir,
        gen_dir: GenerationDir,
        key: str,
        *,
        address: str,
        port: int,
        environ: Mapping[str, str],
        files: IoThread,
    ) -> None:
        self.cell = cell
        self.run_dir = run_dir
        self.gen_dir = gen_dir
        self.key = key
        self.address = address
        self.port = port
        self.files = files
        self.publisher = Publisher(run_dir, files, self._on_published)
        self.ray_watch = RayWatch(cell, run_dir, environ, self.changed)
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pushed: dict[str, int] = {}
        self._remembered: ControllerMemory | None = None
        self._failed_s: float | None = None
        self._session: aiohttp.ClientSession | None = None

    @property
    def url(self) -> str:
        """Base address of this controller."""
        return f"http://{self.address}:{self.port}"

    def changed(self) -> None:
        """Something happened: look at everything again."""
        self._changed.set()

    async def run(self) -> None:
        """Serve until SIGTERM. OSError (EADDRINUSE) if the port is taken."""
        runner = web.AppRunner(self._surface().app(), access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, self.address, self.port)
        await site.start()
        log.info("serving on %s", self.url)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ended.set)
        await self.publisher.recall(self.cell.cell.name)
        # No proxy, whatever the environment says: engines and agents are in this cluster.
        self._session = aiohttp.ClientSession(trust_env=False)
        ended = asyncio.create_task(self._ended.wait())
        keepers = {
            asyncio.create_task(self._loop()),
            asyncio.create_task(self.publisher.run()),
            asyncio.create_task(self.ray_watch.run()),
        }
        try:
            await asyncio.wait({ended, *keepers}, return_when=asyncio.FIRST_COMPLETED)
            for keeper in keepers:
                if keeper.done():
                    keeper.result()  # what nobody foresaw: end, and be started again
            await self._say_goodbye()
        finally:
            tasks = {ended, *keepers, *self._tasks}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._session.close()
            await runner.cleanup()

    # -- requests

    def _surface(self) -> Surface:
        return Surface(
            self.key,
            on_report=self._on_report,
            state=lambda: self.cell.state(time.monotonic(), self.publisher.seq),
            ray=lambda: {"groups": self.ray_watch.group_states},
            stop=self._stop,
        )

    def _on_report(self, report: AgentReport) -> DesiredState:
        answer = self.cell.on_report(report, time.monotonic())
        self._pushed[report.node] = answer.version
        self.changed()
        return answer

    def _stop(self) -> None:
        log.info("asked to stop")
        self.cell.stop()
        self.changed()

    # -- the loop

    async def _loop(self) -> None:
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _TICK_S)
            self._changed.clear()
            now = time.monotonic()
            facts = self.cell.wants_binding(now)
            if facts is not None:
                await self._bind(facts)
            self.cell.advance(now)
            self._push()
            self._send_canaries(now)
            self.publisher.want(self.cell.record(self.url))
            await self._remember()
            await self._end_if_failed(now)

    async def _bind(self, facts: list[NodeFacts]) -> None:
        try:
            binding = bind_cell(self.cell.plan, self.cell.cell, facts)
        except ExaslurmError as error:
            self.cell.failure = str(error)
            log.error("no place for the replicas: %s", error)
            return
        await self._write(self.gen_dir.binding(self.cell.cell.name), dumps(binding, indent=2))
        self.cell.bind(binding)
        for note in binding.notes:
            log.info("%s", note)

    def _push(self) -> None:
        """Send desired states that no report has fetched; reports fetch what this misses."""
        for node in self.cell.members.known():
            desired = self.cell.book.get(node.name)
            if node.report is None or desired.version <= self._pushed.get(node.name, 0):
                continue
            self._pushed[node.name] = desired.version
            facts = node.report.facts
            self._spawn(self._put(f"http://{facts.address}:{facts.agent_port}", desired))

    async def _put(self, url: str, desired: DesiredState) -> None:
        assert self._session is not None
        try:
            async with self._session.put(
                url + "/v1/desired",
                data=dumps(desired),
                headers={
                    "Authorization": f"Bearer {self.key}",
                    "Content-Type": "application/json",
                },
                timeout=aiohttp.ClientTimeout(total=_PUSH_S),
            ) as answer:
                if answer.status >= 300:
                    log.warning("%s refused its desired state: %d", url, answer.status)
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            log.info(
                "%s: desired state not delivered (%s)", url, str(error) or type(error).__name__
            )

    def _send_canaries(self, now: float) -> None:
        for replica in self.cell.canaries_due(now):
            replica.canary_runs = True
            self._spawn(self._canary(replica))

    async def _canary(self, replica: Replica) -> None:
        assert self._session is not None
        process = replica.process
        assert process is not None
        name = replica.shard.served_names[0]
        cause = await canary.send(
            self._session, replica.url, self.key, replica.model, name, timeout_s=_CANARY_S
        )
        if cause is not None:
            log.warning("%s: canary: %s", replica.id, cause)
        self.cell.on_canary(replica, process, cause, time.monotonic())
        self.changed()

    def _on_published(self, record: CellRecord) -> None:
        now = time.monotonic()
        for published in record.replicas:
            replica = self.cell.replicas.get(published.id)
            if published.ready and replica is not None and replica.url == published.url:
                replica.on_published(now)
        self.changed()

    async def _remember(self) -> None:
        memory = self.cell.memory()
        if memory != self._remembered and self.cell.binding is not None:
            self._remembered = memory
            path = self.gen_dir.controller_memory(self.cell.cell.name)
            await self._write(path, dumps(memory))

    async def _end_if_failed(self, now: float) -> None:
        members = self.cell.members
        if self.cell.failure is None and self.cell.binding is None:
            shortage = members.shortage() if members.deadline_over(now) else None
            if shortage is not None and self._failed_s is None:
                log.error("%s; %s", shortage, members.problem(now))
            if shortage is None:
                self._failed_s = None
                return
        elif self.cell.failure is None:
            return
        self._failed_s = self._failed_s or now
        if now - self._failed_s < FAILED_LINGER_S or self.cell.stopping:
            return
        shortage = members.shortage()
        reason = self.cell.failure or f"{shortage}; {members.problem(now)}"
        self.cell.failure = reason
        await self._write(self.gen_dir.failure(self.cell.cell.name), reason + "\n")
        self._stop()

    async def _say_goodbye(self) -> None:
        """The other nodes end too, and nobody is told that something here serves."""
        self.cell.stop()
        self.cell.advance(time.monotonic())
        self._push()
        self.publisher.want(self.cell.record(self.url))
        waits: list[Coroutine[Any, Any, Any]] = [self.publisher.flush(timeout_s=3.0)]
        waits += [_settled(task) for task in self._tasks]
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.gather(*waits), _PUSH_S + 1.0)

    # -- helpers

    async def _write(self, path: Path, text: str) -> None:
        try:
            await self.files.run(write_atomic, path, text, timeout_s=_FILE_S)
        except ExaslurmError as error:
            log.warning("%s", error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("unforeseen", exc_info=task.exception())


async def _settled(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task])
