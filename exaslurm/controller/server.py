"""The controller process: the state machine, with its I/O around it."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Mapping
from pathlib import Path

import aiohttp
from aiohttp import web

from exaslurm.bind.binder import bind_cell
from exaslurm.bind.elsewhere import cells_to_ask, fatal_elsewhere
from exaslurm.controller.cell import Cell
from exaslurm.controller.diagnose import why_silent
from exaslurm.controller.drain import check_known, drain_nodes, drain_replicas
from exaslurm.controller.exclude import Exclusions
from exaslurm.controller.http import Surface
from exaslurm.controller.keep import Keeper
from exaslurm.controller.neighbours import read_neighbours
from exaslurm.controller.peers import PUSH_S, Peers
from exaslurm.controller.publish import Publisher
from exaslurm.controller.ray_watch import RayWatch
from exaslurm.controller.relay import given_up, relays_due
from exaslurm.controller.relief import reliefs_due
from exaslurm.controller.replace import moves_due
from exaslurm.controller.targets import check_targets, settle
from exaslurm.core.cell import AgentReport, CellRecord, DesiredState
from exaslurm.core.codec import dumps, loads
from exaslurm.core.drain import DrainRequest
from exaslurm.core.exclusion import EndedTasks
from exaslurm.core.facts import NodeFacts
from exaslurm.core.placement import Shard
from exaslurm.core.scale import Targets
from exaslurm.errors import ExaslurmError
from exaslurm.rundir import GenerationDir, RunDir
from exaslurm.util.clock import MACHINE, Clock
from exaslurm.util.files import read_text
from exaslurm.util.iothread import IoThread
from exaslurm.util.waiting import set_within

log = logging.getLogger(__name__)

_TICK_S = 1.0
_FILE_S = 10.0
_DIAGNOSE_EVERY_S, _MAX_DIAGNOSED = 10.0, 16
_ENDED_EVERY_S = 2.0
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
        clock: Clock = MACHINE,
    ) -> None:
        self._clock = clock
        self.cell = cell
        self.gen_dir = gen_dir
        self.key = key
        self.address = address
        self.port = port
        self.files = files
        self.keeper = Keeper(files, clock)
        self._elsewhere: Mapping[Shard, frozenset[str]] | None = None
        self.exclusions = Exclusions(run_dir.excluded(cell.cell.name))
        self.publisher = Publisher(run_dir, files, self._on_published, clock)
        self.ray_watch = RayWatch(cell, run_dir, environ, self.changed)
        # No proxy, whatever the environment says: engines and agents are in this cluster.
        self._session = aiohttp.ClientSession(trust_env=False)
        self.peers = Peers(cell, self._session, key, self.changed, clock)
        self._changed = asyncio.Event()
        self._told_to_end = asyncio.Event()
        self._diagnose_due_s = 0.0
        self._ended_due_s = 0.0
        self._failed_s: float | None = None

    @property
    def url(self) -> str:
        """Base address of this controller."""
        return f"http://{self.address}:{self.port}"

    def changed(self) -> None:
        """Something happened: look at everything again."""
        self._changed.set()

    async def run(self) -> None:
        """Serve until SIGTERM. OSError (EADDRINUSE) if the port is taken."""
        surface = Surface(
            self.key,
            on_report=self._on_report,
            state=lambda: self.cell.state(self._clock.monotonic(), self.publisher.seq),
            ray=lambda: {"groups": self.ray_watch.group_states},
            stop=self._stop,
            drain=self._drain,
            target=self._target,
        )
        runner = web.AppRunner(surface.app(), access_log=None, shutdown_timeout=1.0)
        try:
            await runner.setup()
            await web.TCPSite(runner, self.address, self.port).start()
            log.info("serving on %s", self.url)
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._told_to_end.set)
            await self.publisher.recall(self.cell.cell.name)
            await self.exclusions.recall(self.files)
            await self._work()
        finally:
            await self.peers.close()
            await self._session.close()
            await runner.cleanup()
            log.info("ended")

    async def _work(self) -> None:
        end = asyncio.create_task(self._told_to_end.wait())
        keepers = {
            asyncio.create_task(self._loop()),
            asyncio.create_task(self.publisher.run()),
            asyncio.create_task(self.keeper.run()),
            asyncio.create_task(self.ray_watch.run()),
        }
        try:
            await asyncio.wait({end, *keepers}, return_when=asyncio.FIRST_COMPLETED)
            for keeper in keepers:
                if keeper.done():
                    keeper.result()  # what nobody foresaw: end, and be started again
            await self._say_goodbye()
        finally:
            pending = {end, *keepers}
            while pending:
                # Again and again: before Python 3.12, wait_for loses a cancellation that comes
                # together with what it waits for (python/cpython#86296).
                for task in pending:
                    task.cancel()
                _, pending = await asyncio.wait(pending, timeout=0.1)
            await asyncio.gather(end, *keepers, return_exceptions=True)

    def _on_report(self, report: AgentReport) -> DesiredState:
        answer = self.cell.on_report(report, self._clock.monotonic())
        self.peers.has_fetched(report.node, answer.version)
        self.changed()
        return answer

    def _stop(self, grace_s: float | None = None) -> None:
        log.info("asked to stop")
        self.cell.stop(grace_s)
        self.changed()

    def _drain(self, asked: DrainRequest) -> None:
        what = ", ".join((*asked.replicas, *asked.nodes)) or "everything"
        if asked.is_whole_cell:
            self.cell.drain()
        else:
            check_known(self.cell, asked.replicas, asked.nodes)
            drain_replicas(self.cell, asked.replicas, asked.reason, self._clock.monotonic())
            drain_nodes(
                self.cell, asked.nodes, asked.reason,
                wall_s=self._clock.wall(), excluded_s=asked.excluded_s,
            )  # fmt: skip
        log.info("asked to drain %s: %s", what, asked.reason)
        self.changed()

    def _target(self, targets: Targets) -> None:
        wanted = None if targets.replicas is None else dict(targets.replicas)
        check_targets(self.cell, wanted or {})
        if wanted != self.cell.targets:
            log.info("asked to run %s", "all replicas" if wanted is None else wanted)
        self.cell.targets = wanted
        self.changed()

    def _on_published(self, record: CellRecord) -> None:
        now = self._clock.monotonic()
        for published in record.replicas:
            replica = self.cell.replicas.get(published.id)
            if published.ready and replica is not None and replica.url == published.url:
                replica.on_published(now)
        self.changed()

    async def _loop(self) -> None:
        while True:
            await set_within(self._changed, self._clock.machine_s(_TICK_S))
            self._changed.clear()
            now = self._clock.monotonic()
            facts = self.cell.wants_binding(now)
            if facts is not None:
                await self._bind(facts)
            for line in settle(self.cell, now):
                log.info("%s", line)
            self._relieve(now)
            self._move(now)
            self.cell.restart_gangs(now)
            self.cell.advance(now)
            self.peers.push()
            self.peers.send_canaries(now)
            self.peers.probe_silent(now)
            self.publisher.want(self.cell.record(self.url))
            self._remember()
            self.exclusions.note(self.cell, now, self._clock.wall(), self.keeper.keep)
            await self._look_for_ended(now)
            await self._diagnose(now)
            await self._end_if_failed(now)

    async def _bind(self, facts: list[NodeFacts]) -> None:
        plan, cell = self.cell.plan, self.cell.cell
        if self._elsewhere is None:
            self._elsewhere = await self._look_elsewhere()
        try:
            binding = bind_cell(plan, cell, facts, self._elsewhere)
        except ExaslurmError as error:
            if self.cell.failure is None:
                log.error("no place for the replicas: %s", error)
            self.cell.failure = str(error)
            return
        self.cell.failure = None
        self.cell.bind(binding)
        for note in binding.notes:
            log.info("%s", note)

    async def _look_elsewhere(self) -> Mapping[Shard, frozenset[str]]:
        """What other cells have done with the shards of this one; nothing where that cannot be
        read in time."""
        plan, cells = self.cell.plan, cells_to_ask(self.cell.plan, self.cell.cell)
        if not cells or not self.cell.marker.switches:
            return {}
        try:
            bound = await self.files.run(
                read_neighbours, self.gen_dir, cells, plan.hash, timeout_s=_FILE_S
            )
        except (ExaslurmError, OSError) as error:
            log.warning("the other cells' places: %s", error)
            return {}
        return fatal_elsewhere(bound)

    def _relieve(self, now: float) -> None:
        for relief in reliefs_due(self.cell, now):
            log.warning("%s: %s", relief.replica.id, relief.reason)
            relief.replica.leave(relief.reason, now, then="yield")
            self.cell.pressure.relieved(relief.node, now)

    def _move(self, now: float) -> None:
        for move in moves_due(self.cell, now):
            nodes = ", ".join(move.place.nodes)
            log.warning("%s goes to %s: %s", move.place.id, nodes, move.reason)
            self.cell.place(move.place, now)
        for replica in list(self.cell.replicas.values()):
            why = given_up(self.cell, replica, now)
            if why is not None:
                log.warning("%s: its successor is given up: %s", replica.id, why)
                self.cell.end_relay(replica)
        while relays := relays_due(self.cell, now):
            for relay in relays:
                if relay.place is None:
                    log.info("%s leaves: %s", relay.replica.id, relay.reason)
                    relay.replica.leave(relay.reason, now)
                else:
                    log.info("%s goes to %s: %s", relay.replica.id, relay.place.node, relay.reason)
                    self.cell.begin_relay(relay.replica, relay.place, now)

    def _remember(self) -> None:
        """Where everything is, for the next controller."""
        binding, name = self.cell.binding, self.cell.cell.name
        if binding is not None and not self.cell.stopping:
            self.keeper.keep(self.gen_dir.binding(name), dumps(binding, indent=2))
            memory = self.cell.memory(self._clock.monotonic())
            self.keeper.keep(self.gen_dir.controller_memory(name), dumps(memory))

    async def _look_for_ended(self, now: float) -> None:
        """Learn from the batch host which nodes will not report."""
        members = self.cell.members
        if self.cell.binding is not None or not members.missing() or now < self._ended_due_s:
            return
        self._ended_due_s = now + _ENDED_EVERY_S
        path = self.gen_dir.ended(self.cell.cell.name)
        try:
            text = await self.files.run(_text_or_none, path, timeout_s=_FILE_S)
            if text is not None:
                members.on_ended(loads(EndedTasks, text, where=str(path)).nodes)
        except ExaslurmError as error:
            log.warning("%s", error)

    async def _diagnose(self, now: float) -> None:
        """Find out why nodes are late."""
        late = self.cell.members.late(now)
        if not late or now < self._diagnose_due_s:
            return
        self._diagnose_due_s = now + _DIAGNOSE_EVERY_S
        logs = self.gen_dir.logs(self.cell.cell.name)
        try:
            for node in late[:_MAX_DIAGNOSED]:
                log_file = logs / f"{node.name}.init.log"
                node.cause = await self.files.run(why_silent, log_file, timeout_s=_FILE_S)
        except ExaslurmError as error:
            log.warning("%s", error)

    async def _end_if_failed(self, now: float) -> None:
        """A cell that cannot serve says why for a while, then ends its job."""
        reason = self.cell.failure or self.cell.hopeless(now)
        if reason is None or self.cell.stopping:
            self._failed_s = None
            return
        if self._failed_s is None:
            self._failed_s = now
            log.error("the cell failed: %s", reason)
        if now - self._failed_s < FAILED_LINGER_S:
            return
        self.cell.failure = reason
        self.keeper.keep(self.gen_dir.failure(self.cell.cell.name), reason + "\n")
        await self.keeper.flush(timeout_s=_FILE_S)
        self._stop()

    async def _say_goodbye(self) -> None:
        """The other nodes end too, and nobody is told that something here serves."""
        log.info("ending")
        self.cell.stop()
        self.cell.advance(self._clock.monotonic())
        self.peers.push()
        self.publisher.want(self.cell.record(self.url))
        await asyncio.gather(
            self.publisher.flush(timeout_s=PUSH_S), self.peers.settle(timeout_s=PUSH_S + 0.5)
        )


def _text_or_none(path: Path) -> str | None:
    return read_text(path) if path.exists() else None
