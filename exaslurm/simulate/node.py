"""A simulated node: an agent of the real parts, without the machine under it.

What an agent does with engines (staging, starting, watching, adopting), how it speaks with its
controller, and how it keeps the controller on the head node is the agent's own code. What it would
find out about its machine is made up.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

import aiohttp
from aiohttp import web

from exaslurm.agent.engine import EngineTools
from exaslurm.agent.engine_state import StateFiles
from exaslurm.agent.engines import Engines
from exaslurm.agent.head import HeadDuty
from exaslurm.agent.link import Link
from exaslurm.agent.memory import OomWatch
from exaslurm.agent.orders import Orders
from exaslurm.agent.preflight import OptionCheck
from exaslurm.agent.probe import EngineProbe
from exaslurm.agent.server import make_app
from exaslurm.agent.settings import Settings, Times
from exaslurm.agent.staging import Stager
from exaslurm.core import ports
from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.cell import AgentReport, DesiredState, RayNodeStatus
from exaslurm.core.facts import NodeFacts
from exaslurm.engines.place import EnginePlace
from exaslurm.errors import ExaslurmError
from exaslurm.keys.secrets import read_secret
from exaslurm.simulate.children import SimulatedChildren
from exaslurm.util.clock import Clock
from exaslurm.util.files import make_private_dir
from exaslurm.util.iothread import IoThread

log = logging.getLogger(__name__)

_CORES = 16
_MEM_MIB = 64 * 1024
# Init starts an agent that has died again after this time.
_AGENT_AGAIN_S = 2.0
# After this time on the machine's clock a connection to a host that is gone is given up
# (TCP_USER_TIMEOUT of the router).
_VANISHED_S = 2.0
_OFF = RayNodeStatus(state="off", epoch=0)


def times(clock: Clock) -> Times:
    """The agent's intervals by this clock; limits of single questions are the machine's."""
    usual = Times()
    return Times(
        probe_s=clock.machine_s(usual.probe_s),
        watch_s=clock.machine_s(usual.watch_s),
        scrape_s=clock.machine_s(usual.scrape_s),
        report_s=clock.machine_s(usual.report_s),
        hung_s=clock.machine_s(usual.hung_s),
        probe_timeout_s=max(1.0, clock.machine_s(usual.probe_timeout_s)),
        restart_min_s=clock.machine_s(usual.restart_min_s),
        restart_max_s=clock.machine_s(usual.restart_max_s),
    )


class _Engines(Engines):
    """Those of an agent that may die, as its process would."""

    def die(self) -> None:
        """Nobody looks after the engines any more; they go on."""
        for engine in self._engines.values():
            engine.let_go()
        for stop in self._stops.values():
            stop.cancel()


class Agent:
    """One life of an agent. It ends when it is told to, or when its task is cancelled."""

    def __init__(
        self, settings: Settings, name: str, address: str, order: int, clock: Clock,
        children: SimulatedChildren, files: IoThread,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._clock = clock
        self._children = children
        self._files = files
        self._key = read_secret(settings.run_dir.internal_key)
        self._changed = asyncio.Event()
        self._incarnation = secrets.token_hex(8)
        self._orders = Orders(settings.node_dir / "desired.json", self._apply, self._changed.set)
        self.ending = asyncio.Event()
        self.terminated = False
        # Its process would be gone, and so what is still said to it unheard.
        self._dead = False
        self._facts = NodeFacts(
            node=name,
            het_group=settings.het_group,
            order=order,
            address=address,
            agent_port=settings.port_base + ports.AGENT,
            port_base=settings.port_base,
            cpus=tuple(range(_CORES)),
            cpus_granted=_CORES,
            mem_mib=_MEM_MIB,
        )
        self._head = HeadDuty(settings, self._facts, children) if settings.is_head else None
        self._engines: _Engines

    async def run(self) -> int:
        """Until told to end; 0 then."""
        timeout = aiohttp.ClientTimeout(total=30)
        runner = web.AppRunner(
            make_app(self._key, report=self._report, accept=self._accept,
                     log_path=self._settings.gen_dir.replica_log, files=self._files),
            access_log=None,
            handle_signals=False,
        )  # fmt: skip
        async with aiohttp.ClientSession(trust_env=False, timeout=timeout) as session:
            try:
                await runner.setup()
                facts = self._facts
                await web.TCPSite(
                    runner, facts.address, facts.agent_port, shutdown_timeout=1
                ).start()
                return await self._work(session)
            finally:
                await runner.cleanup()

    async def _work(self, session: aiohttp.ClientSession) -> int:
        settings = self._settings
        self._engines = _Engines(self._tools(session), self._changed)
        self._orders.recall()
        link = Link(session, settings.controller_url, self._key, self._report, self._accept)
        duties = [
            self._engines.run(),
            link.run(self._changed, settings.times.report_s, settings.plan.timeouts.nodes_s),
            self._told_to_end(),
        ]
        if self._head is not None:
            duties.append(self._head.run())
        tasks = [asyncio.create_task(duty) for duty in duties]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except BaseException:
            self._dead = True
            self._engines.die()
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        drain_s = self._clock.machine_s(settings.plan.timeouts.drain_s)
        if self.terminated:
            drain_s = min(drain_s, self._clock.machine_s(max(0.0, settings.grace_s - 12.0)))
        await self._engines.stop_all(drain_s)
        await link.post()
        if self._head is not None:
            await self._head.stop()
        return 0

    def _tools(self, session: aiohttp.ClientSession) -> EngineTools:
        settings = self._settings
        return EngineTools(
            plan=settings.plan,
            times=settings.times,
            children=self._children,
            stager=Stager(settings.plan, settings.environ),
            options=OptionCheck(settings.plan.node.python, settings.environ, (), 1.0, self._files),
            states=StateFiles(settings.node_dir),
            files=self._files,
            place=self._place_of,
            probe=lambda binding: self._probe_of(session, binding),
            oom=OomWatch(),
        )

    def _probe_of(self, session: aiohttp.ClientSession, binding: ReplicaBinding) -> EngineProbe:
        url = f"http://{binding.address}:{binding.port}"
        return EngineProbe(session, url, self._key, self._settings.times.probe_timeout_s)

    def _place_of(self, replica: str) -> EnginePlace:
        return EnginePlace(
            node_dir=self._settings.node_dir,
            log=self._settings.node_dir / f"{replica}.log",
            key_file=self._settings.run_dir.internal_key,
            interface=None,
        )

    async def _told_to_end(self) -> None:
        await self.ending.wait()

    def _report(self) -> AgentReport:
        return AgentReport(
            node=self._facts.node,
            cell=self._settings.cell_name,
            incarnation=self._incarnation,
            started_s=self._children.started_s,
            facts=self._facts,
            seen_version=self._orders.seen_version,
            engines=self._engines.statuses(),
            ray=_OFF,
        )

    def _accept(self, desired: DesiredState) -> None:
        if self._head is not None:
            self._head.has_served()
        self._orders.accept(desired)

    def _apply(self, desired: DesiredState) -> None:
        if desired.stop:
            self.ending.set()
        elif not self.ending.is_set() and not self._dead:
            self._engines.want(desired.engines, desired.kill)


class Node:
    """One node. ``on_end(job, code)`` is called when the task of a job has ended by itself."""

    def __init__(
        self, name: str, address: str, directory: Path, clock: Clock,
        on_end: Callable[[str, str, int], None],
    ) -> None:  # fmt: skip
        self.name = name
        self.address = address
        self._directory = directory
        self._clock = clock
        self._on_end = on_end
        self._files = IoThread(f"files-{name}")
        self._job: str | None = None
        self._killed = False
        self._children: SimulatedChildren | None = None
        self._agent: Agent | None = None
        self._life: asyncio.Task[None] | None = None
        self._agent_task: asyncio.Task[int] | None = None

    @property
    def job(self) -> str | None:
        """The job that is here."""
        return self._job

    @property
    def children(self) -> SimulatedChildren | None:
        """Of the job that is here."""
        return self._children

    async def begin(self, job: str, settings: Settings, order: int) -> None:
        """The task of a job: init, and an agent under it."""
        await self.kill()
        self._job = job
        self._killed = False
        make_private_dir(settings.node_dir)
        self._children = SimulatedChildren(settings.node_dir, self._clock)
        self._life = asyncio.create_task(self._init(job, settings, order))

    async def _init(self, job: str, settings: Settings, order: int) -> None:
        """Keep an agent running, as init does, until one ends with 0."""
        children = self._children
        assert children is not None
        code = 1
        while code != 0:
            try:
                self._agent = Agent(
                    settings, self.name, self.address, order, self._clock, children, self._files
                )
                self._agent_task = asyncio.create_task(self._agent.run())
                code = await self._agent_task
            except asyncio.CancelledError:
                if self._killed:
                    raise
            except (ExaslurmError, OSError) as error:
                log.warning("%s: agent: %s", self.name, error)
            if code != 0:
                await asyncio.sleep(self._clock.machine_s(_AGENT_AGAIN_S))
        await children.kill_all()
        self._forget(settings.node_dir)
        self._on_end(job, self.name, 0)

    def _forget(self, node_dir: Path) -> None:
        self._job = self._children = self._agent = self._life = None
        shutil.rmtree(node_dir, ignore_errors=True)

    def terminate(self, job: str) -> None:
        """SIGTERM to the task."""
        if self._job == job and self._agent is not None:
            self._agent.terminated = True
            self._agent.ending.set()

    def kill_agent(self) -> bool:
        """As SIGKILL: engines go on, init starts another agent."""
        if self._agent_task is None or self._agent_task.done():
            return False
        self._agent_task.cancel()
        return True

    async def kill(self) -> None:
        """SIGKILL to everything of the job."""
        life, children, job = self._life, self._children, self._job
        if life is None or children is None or job is None:
            return
        self._killed = True
        life.cancel()
        if self._agent_task is not None:
            self._agent_task.cancel()
        await asyncio.gather(life, return_exceptions=True)
        await children.kill_all()
        self._forget(children.directory)

    async def vanish(self) -> None:
        """Power off: nothing answers any more, and after a while peers give connections up."""
        children = self._children
        if children is not None:
            for engine in children.engines.values():
                engine.hang()
            if self._agent_task is not None:
                self._agent_task.cancel()
            await asyncio.sleep(_VANISHED_S)
        await self.kill()
