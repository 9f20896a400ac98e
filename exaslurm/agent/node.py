"""The agent as a whole: its parts, and when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import shutil
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from exaslurm.agent.children import Children, InitGoneError
from exaslurm.agent.engine import EngineTools
from exaslurm.agent.engine_state import StateFiles
from exaslurm.agent.engines import Engines
from exaslurm.agent.fabric import FabricWatch
from exaslurm.agent.fit import smallest_gpu_gib
from exaslurm.agent.gang import FollowerProbe
from exaslurm.agent.head import EX_TEMPFAIL, HeadDuty, PortsTakenError
from exaslurm.agent.head import NAME as CONTROLLER
from exaslurm.agent.health import Preflight
from exaslurm.agent.link import Link
from exaslurm.agent.logs import EngineLogs
from exaslurm.agent.memory import MemoryWatch, OomWatch
from exaslurm.agent.orders import Orders
from exaslurm.agent.orphans import kill_sessions
from exaslurm.agent.preflight import OptionCheck
from exaslurm.agent.probe import EngineProbe
from exaslurm.agent.proxies import cell_nodes, no_proxy
from exaslurm.agent.ray_node import NAME as RAY
from exaslurm.agent.ray_node import RayNode
from exaslurm.agent.server import make_app
from exaslurm.agent.service_cores import ServiceCores
from exaslurm.agent.settings import Settings
from exaslurm.agent.staging import Stager
from exaslurm.core import ports
from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.cell import AgentReport, DesiredState
from exaslurm.core.facts import NodeFacts
from exaslurm.core.trial import requests_for
from exaslurm.engines.caches import ReplicaDirs
from exaslurm.engines.place import EnginePlace
from exaslurm.errors import PreflightFailed, StateError
from exaslurm.facts.address import NodeAddress, node_address
from exaslurm.facts.collect import collect, node_name
from exaslurm.keys.secrets import read_secret
from exaslurm.util.files import read_text, write_atomic
from exaslurm.util.iothread import IoThread
from exaslurm.util.logthread import write_on

log = logging.getLogger(__name__)

# What is left of init's grace for Ray, the controller and the end of processes.
_END_S = 6.0
# For the last words of engines.
_LOGS_S = 2.0


class NodeAgent:
    """One node of a cell. ``run`` returns the exit code: 0 after a stop, 75 if a port of the head
    is taken, 1 if it must be started again."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._key = read_secret(settings.run_dir.internal_key)
        self._where = node_address(
            settings.plan.node.interface,
            node_name(settings.environ),
            settings.plan.node.host_suffix,
        )
        self._files = IoThread("files")
        write_on(self._files)
        self._logs = EngineLogs(
            settings.node_dir, settings.gen_dir.replica_log("").parent, self._files
        )
        # Once: what PATH names may lie on a file system that hangs.
        self._numactl = shutil.which("numactl", path=settings.environ.get("PATH")) is not None
        self._fabric = FabricWatch(settings)
        self._children = Children(settings.node_dir)
        self._incarnation = secrets.token_hex(8)
        self._changed = asyncio.Event()
        self._ending = asyncio.Event()
        self._terminated = False
        self._grace_s: float | None = None
        self._orders = Orders(settings.node_dir / "desired.json", self._apply, self._changed.set)
        self._facts: NodeFacts
        self._engines: Engines
        self._service: ServiceCores
        self._ray: RayNode
        self._preflight: Preflight
        self._memory: MemoryWatch
        self._head: HeadDuty | None = None

    async def run(self) -> int:
        """Until told to stop, or until init or a port is lost."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_terminate)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            loop.add_signal_handler(number, log.warning, "Slurm announces the end of the job")
        await self._children.refresh()
        timeout = aiohttp.ClientTimeout(total=30)
        async with aiohttp.ClientSession(trust_env=False, timeout=timeout) as session:
            return await self._run(session)

    async def _run(self, session: aiohttp.ClientSession) -> int:
        settings, plan = self._settings, self._settings.plan
        runner, self._facts = await self._serve()
        log.info("%s: serving on %s:%d", self._facts.node, self._facts.address,
                 self._facts.agent_port)  # fmt: skip
        self._children.common_env = no_proxy(
            settings.environ,
            [self._facts.node, self._facts.address, settings.head_host, *cell_nodes(settings)],
        )
        # What these programs leave beside their results goes with the node's directory.
        scratch = ReplicaDirs.of(settings.node_dir, "agent")
        scratch.make()
        environ = {**settings.environ, **scratch.env()}
        stager = Stager(plan, environ)
        options = OptionCheck(
            plan.node.python,
            environ,
            (Path(plan.node.shared) / "exaslurm-cache", settings.node_dir / "cache"),
            settings.times.options_s,
            self._files,
        )
        if settings.runs_engines and any(m.engine.kind == "vllm" for m in plan.models):
            options.begin()
        tools = EngineTools(
            plan=plan,
            times=settings.times,
            children=self._children,
            stager=stager,
            options=options,
            states=StateFiles(settings.node_dir),
            files=self._files,
            place=self._place_of,
            probe=lambda binding: self._probe_of(session, binding),
            oom=OomWatch(),
            gpu_mem_gib=smallest_gpu_gib(self._facts.gpus),
        )
        self._engines = Engines(tools, self._changed)
        self._memory = MemoryWatch(self._facts.gpus, settings.times.report_s)
        self._ray = RayNode(settings, self._facts, self._children, self._files, self._changed.set)
        # With vLLM's Ray executor the ranks of replicas are Ray's processes.
        names = () if any(m.executor == "ray" for m in plan.models) else (RAY, CONTROLLER)
        self._service = ServiceCores(self._children, self._facts.cpus, names)
        self._preflight = Preflight(settings, self._facts, self._changed.set)
        if settings.is_head:
            self._head = HeadDuty(settings, self._facts, self._children)
        self._orders.recall()
        link = Link(session, settings.controller_url, self._key, self._report, self._accept)
        duties: list[Coroutine[Any, Any, None]] = [
            self._children.keep_fresh(),
            self._engines.run(),
            self._logs.run(),
            self._fabric.run(self._facts.topology.hcas),
            self._memory.run(),
            link.run(self._changed, settings.times.report_s, plan.timeouts.nodes_s),
            self._service.run(settings.times.report_s),
            self._told_to_end(),
        ]
        if plan.ray.enabled:
            duties.append(self._ray.run())
        if self._head is not None:
            duties.append(self._head.run())
        preflight = asyncio.create_task(self._preflight.run())
        tasks = [asyncio.create_task(duty) for duty in duties]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        code = self._verdict(done)
        # init's table is needed to the end; everything else stops wanting things now
        keep_fresh = tasks[0]
        for task in (preflight, *tasks[1:]):
            task.cancel()
        await asyncio.gather(preflight, *tasks[1:], return_exceptions=True)
        if code == 0:
            await self._end(link)
        keep_fresh.cancel()
        await asyncio.gather(keep_fresh, stager.close(), options.close(), return_exceptions=True)
        self._children.close()
        await runner.cleanup()
        return code

    def _verdict(self, done: set[asyncio.Task[None]]) -> int:
        for task in done:
            error = task.exception()
            if isinstance(error, PortsTakenError):
                log.error("%s", error)
                return EX_TEMPFAIL
            if isinstance(error, InitGoneError):
                log.error("%s: ending everything that it had started", error)
                self._end_without_init()
                return 1
            if error is not None:
                log.error("a part of the agent failed: starting again", exc_info=error)
                return 1
        return 0

    async def _end(self, link: Link) -> None:
        """Engines, then Ray, then the controller, which tells the others; within the limits."""
        settings = self._settings
        drain_s = settings.plan.timeouts.drain_s
        if self._grace_s is not None:
            drain_s = min(drain_s, max(0.0, self._grace_s))
        if self._terminated:
            drain_s = min(drain_s, max(0.0, settings.grace_s - 2 * _END_S))
        log.info("stopping: requests in flight have %.0f s", drain_s)
        try:
            await self._engines.stop_all(drain_s)
            await link.post()
            await self._ray.stop()
            if self._head is not None:
                await self._head.stop()
        except InitGoneError as error:
            log.error("%s", error)
            self._end_without_init()
        await self._logs.copy(timeout_s=_LOGS_S)
        log.info("stopped")

    def _end_without_init(self) -> None:
        left = [self._children.get(name) for name in self._children.names()]
        count = kill_sessions(c for c in left if c is not None and c.pid != os.getpid())
        log.error("killed %d processes", count)
        shutil.rmtree(self._settings.node_dir, ignore_errors=True)

    async def _told_to_end(self) -> None:
        await self._ending.wait()

    def _on_terminate(self) -> None:
        self._terminated = True
        self._ending.set()

    async def _serve(self) -> tuple[web.AppRunner, NodeFacts]:
        """Bind the agent's port: in the cell's block, elsewhere if that is taken (but not on the
        head, where Ray and the controller share the block)."""
        settings = self._settings
        app = make_app(
            self._key,
            report=self._report,
            accept=self._accept,
            log_path=self._log_path,
            files=self._files,
        )
        runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await runner.setup()
        for base in self._bases():
            site = web.TCPSite(runner, self._where.address, base + ports.AGENT, shutdown_timeout=1)
            try:
                await site.start()
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise PreflightFailed(
                        f"{self._where.address}:{base + ports.AGENT} cannot be used"
                    ) from error
                log.warning("port %d is taken", base + ports.AGENT)
                continue
            return runner, await self._facts_of(self._where, base)
        raise NoPortsError(f"no free block of ports on {node_name(settings.environ)}")

    def _bases(self) -> list[int]:
        settings, policy = self._settings, self._settings.plan.ports
        if settings.is_head:
            return [settings.port_base]
        kept = settings.node_dir / "port_base"
        with contextlib.suppress(StateError, ValueError):
            # Running engines of an earlier agent have ports of that block.
            return [int(read_text(kept))]
        blocks = max(1, (policy.last - policy.first + 1) // policy.block)
        first = (settings.port_base - policy.first) // policy.block
        return [policy.first + (first + n) % blocks * policy.block for n in range(blocks)]

    async def _facts_of(self, where: NodeAddress, base: int) -> NodeFacts:
        settings = self._settings
        write_atomic(settings.node_dir / "port_base", str(base))
        return collect(
            settings.plan.node,
            settings.environ,
            het_group=settings.het_group,
            kind=settings.component.kind,
            address=where.address,
            agent_port=base + ports.AGENT,
            port_base=base,
            measures=await self._fabric.measures(where.address, self._files),
        )

    def _report(self) -> AgentReport:
        return AgentReport(
            node=self._facts.node,
            cell=self._settings.cell_name,
            incarnation=self._incarnation,
            started_s=self._children.started_s,
            facts=self._facts,
            seen_version=self._orders.seen_version,
            engines=self._engines.statuses(),
            ray=self._ray.status,
            checking=self._preflight.result is None,
            preflight=self._preflight.result,
            fabric=self._fabric.figures,
            memory=self._memory.figures,
        )

    def _accept(self, desired: DesiredState) -> None:
        """The controller has answered, and it is this that it wants."""
        if self._head is not None:
            self._head.has_served()
        self._orders.accept(desired)

    def _apply(self, desired: DesiredState) -> None:
        if desired.stop:
            self._grace_s = desired.grace_s
            self._ending.set()
        elif not self._ending.is_set():
            self._ray.want(desired.ray)
            self._engines.want(desired.engines, desired.kill)
            self._service.want(desired.engines)

    def _place_of(self, replica: str) -> EnginePlace:
        return EnginePlace(
            node_dir=self._settings.node_dir,
            log=self._logs.local(replica),
            shown_log=self._settings.gen_dir.replica_log(replica),
            key_file=self._settings.run_dir.internal_key,
            interface=self._where.interface,
            hcas=self._facts.topology.hcas,
            ray_env=self._ray.client_env(),
            topology=self._facts.topology,
            gpus=self._facts.gpus,
            numactl=self._numactl,
        )

    def _probe_of(
        self, session: aiohttp.ClientSession, binding: ReplicaBinding
    ) -> EngineProbe | FollowerProbe:
        if binding.rank > 0:
            return FollowerProbe()
        url = f"http://{binding.address}:{binding.port}"
        model = self._settings.plan.model(binding.model)
        shard = next(shard for shard in model.shards if shard.name == binding.shard)
        trial = requests_for(model, shard.served_names[0])
        return EngineProbe(session, url, self._key, self._settings.times.probe_timeout_s, trial)

    def _log_path(self, name: str) -> Path:
        """``c000-r0001`` is a replica's log, ``ray`` and ``controller`` are this node's."""
        gen_dir, cell = self._settings.gen_dir, self._settings.cell_name
        if name == "controller":
            return gen_dir.logs(cell) / "controller.log"
        if name in ("ray", "init"):
            return gen_dir.logs(cell) / f"{self._facts.node}.{name}.log"
        local = self._logs.local(name)
        return local if local.exists() else gen_dir.replica_log(name)


class NoPortsError(PreflightFailed):
    """Every block of ports is taken on this node."""
