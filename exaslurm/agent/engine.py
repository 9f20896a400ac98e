"""One replica's engine on this node, from staging to its end and again.

An engine is started through init and named ``engine:<replica>``; it goes on when the agent dies,
and the next agent adopts it by pid and start time. All state is in ``EngineStatus``; whoever
changes it calls ``changed``.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import logging
import shutil
import socket
import time
from collections.abc import Callable, Collection
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from exaslurm.agent.affinity import look
from exaslurm.agent.children import Child, Children
from exaslurm.agent.engine_state import EngineState, StateFiles
from exaslurm.agent.first_cause import RESTART_MARKER, TAIL_BYTES, cause_of_end
from exaslurm.agent.fit import check_model
from exaslurm.agent.gang import FollowerProbe, leader_gone, part_name
from exaslurm.agent.memory import OomWatch
from exaslurm.agent.preflight import OptionCheck
from exaslurm.agent.probe import EngineProbe
from exaslurm.agent.progress import Progress
from exaslurm.agent.settings import Times
from exaslurm.agent.staging import Stager
from exaslurm.agent.tail import tail
from exaslurm.agent.usage import usage_of
from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.cell import EngineStatus
from exaslurm.core.plan import Plan
from exaslurm.engines.build import build_engine
from exaslurm.engines.caches import ReplicaDirs
from exaslurm.engines.place import EnginePlace
from exaslurm.errors import EngineExited, ExaslurmError, PreflightFailed, ReplicaNotReady
from exaslurm.util.files import append_line
from exaslurm.util.iothread import IoThread

log = logging.getLogger(__name__)

_FILE_S = 10.0
# Not every page is news.
_MEM_STEP_MIB = 16


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineTools:
    """What the engines of a node share."""

    plan: Plan
    times: Times
    children: Children
    stager: Stager
    options: OptionCheck
    states: StateFiles
    files: IoThread
    place: Callable[[str], EnginePlace]
    probe: Callable[[ReplicaBinding], EngineProbe | FollowerProbe]
    oom: OomWatch
    # Of the smallest GPU, None if nobody knows.
    gpu_mem_gib: float | None = None


class Engine:
    """Keeps one engine running until ``stop``."""

    def __init__(
        self, binding: ReplicaBinding, tools: EngineTools, changed: Callable[[], None]
    ) -> None:
        self.binding = binding
        self.status = EngineStatus(
            replica=binding.id, phase="waiting", port=binding.port, attempt=binding.attempt
        )
        self._tools = tools
        self._changed = changed
        self._name = child_name(binding.id)
        self._place = tools.place(part_name(binding))
        self._probe = tools.probe(binding)
        # At once: the agent's first report must not call a serving engine anything else.
        self._adopted = self._adopt()
        self._task = asyncio.create_task(self._keep_running(), name=self._name)

    async def stop(self, drain_s: float) -> None:
        """SIGTERM, requests in flight may finish within ``drain_s``, then SIGKILL; nothing of
        the engine is left when this returns."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self.status.phase == "stopped":
            return
        self._set(phase="stopping")
        await self._tools.children.refresh()
        child = self._tools.children.get(self._name)
        if child is not None:
            if self.binding.rank > 0 and child.exit is None:
                await leader_gone(self.binding, drain_s)
                drain_s = 0.0
            # vLLM itself waits for drain_s (--shutdown-timeout), then needs a moment to end.
            if not await self._tools.children.end_session(child, drain_s):
                log.error("%s: some processes do not die", self._name)
            await self._tools.children.wait_exit(child, 5.0)
            await self._tools.children.forget(self._name)
        self._tools.states.remove(self.binding.id)
        dirs = ReplicaDirs.of(self._place.node_dir, self.binding.id)
        for directory in (dirs.tmp, dirs.cache):
            shutil.rmtree(directory, ignore_errors=True)
        self._set(phase="stopped", pid=None, start_ticks=None, load=None)

    def let_go(self) -> None:
        """Do not look after it any more; it goes on, as when the agent dies."""
        self._task.cancel()

    async def _keep_running(self) -> None:
        times = self._tools.times
        delay_s = times.restart_min_s
        adopted = self._adopted
        if adopted is None and self._was_started():
            self._set(phase="failed", cause="it ended while the node agent was away")
            return
        while True:
            began = time.monotonic()
            try:
                state, adopted = adopted or await self._start(), None
                await self._watch(state)
            except ExaslurmError as error:
                cause = str(error)
            except Exception as error:
                log.exception("%s", self._name)
                cause = f"the agent could not start it: {error!r}"
            was_healthy = self.status.load_s is not None
            self._set(
                phase="failed", cause=cause, pid=None, start_ticks=None, load=None,
                cpus_actual=None, mems_actual=None, off_plan=None, load_s=None, mem_mib=None,
                restarts=self.status.restarts + 1,
            )  # fmt: skip
            log.error("%s: %s", self._name, cause)
            if self.binding.ranks:
                return  # the controller ends the other parts, then starts all of them
            if was_healthy and time.monotonic() - began > times.restart_max_s:
                delay_s = times.restart_min_s
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, times.restart_max_s)

    def _adopt(self) -> EngineState | None:
        """The state of a living engine of this very binding, if an earlier agent started one."""
        child = self._tools.children.get(self._name)
        state = self._tools.states.read(self.binding.id)
        if child is None or child.exit is not None or state is None:
            return None
        if (state.pid, state.start) != (child.pid, child.start) or state.binding != self.binding:
            return None
        self.status = dataclasses.replace(
            self.status,
            phase="loading" if state.load_s is None else "healthy",
            pid=state.pid,
            start_ticks=state.start,
            restarts=state.restarts,
            stage_s=state.stage_s,
            load_s=state.load_s,
            max_model_len=state.max_model_len,
        )
        log.info("%s: adopted pid %d", self._name, state.pid)
        return state

    def _was_started(self) -> bool:
        """Whether this is a part that an earlier agent started: it cannot join the others twice."""
        state = self._tools.states.read(self.binding.id) if self.binding.ranks else None
        return state is not None and state.binding == self.binding

    async def _start(self) -> EngineState:
        tools, binding = self._tools, self.binding
        model = tools.plan.model(binding.model)
        shard = next(shard for shard in model.shards if shard.name == binding.shard)
        self._set(phase="staging")
        staged = await tools.stager.stage(model)
        self._set(stage_s=staged.seconds if self.status.stage_s is None else self.status.stage_s)
        await tools.files.run(
            check_model, model, Path(staged.path), tools.gpu_mem_gib, timeout_s=_FILE_S
        )
        spec = build_engine(binding, tools.plan, staged.path, shard.served_names, self._place)
        if model.engine.kind == "vllm":
            await tools.options.check(spec.argv)
        await self._clear_the_way()
        ReplicaDirs.of(self._place.node_dir, binding.id).make()
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        marker = f"{RESTART_MARKER} {self.status.restarts} at {now} ====="
        with contextlib.suppress(ExaslurmError):
            append_line(self._place.log, marker)
        child = await tools.children.spawn(self._name, spec)
        state = EngineState(
            binding=binding,
            pid=child.pid,
            start=child.start,
            started_s=child.started_s,
            restarts=self.status.restarts,
            stage_s=self.status.stage_s,
        )
        tools.states.write(state)
        self._set(phase="loading", pid=child.pid, start_ticks=child.start)
        return state

    async def _clear_the_way(self) -> None:
        """No process of an earlier start is left, and the port is free."""
        children = self._tools.children
        await children.refresh()
        earlier = children.get(self._name)
        if earlier is not None:
            # A dead API server leaves its engine core behind, with the memory and the GPU.
            if not await children.end_session(earlier, 0.0):
                raise ReplicaNotReady("processes of the earlier engine do not die")
            await children.wait_exit(earlier, 5.0)
        deadline = time.monotonic() + self._tools.times.port_free_s
        while not _can_bind(self.binding.address, self.binding.port):
            if time.monotonic() > deadline:
                raise PreflightFailed(
                    f"port {self.binding.port} on {self.binding.node} "
                    f"({self.binding.address}) is in use by another program"
                )
            await asyncio.sleep(0.2)

    async def _watch(self, state: EngineState) -> None:
        """Until the engine ends (EngineExited) or must be ended (ReplicaNotReady)."""
        times, children = self._tools.times, self._tools.children
        child = Child(self._name, state.pid, state.start, state.started_s)
        answered = time.monotonic()
        # The node's clock may jump while it loads.
        born = answered - max(0.0, time.time() - state.started_s)
        scraped, looked = 0.0, time.monotonic()
        device = self._tools.plan.model(self.binding.model).engine.device
        progress = Progress(times.stall_s, on_cpu=device == "cpu", now=answered)
        trial: asyncio.Task[bool] | None = None
        try:
            while True:
                pause_s = times.probe_s if self.status.phase == "loading" else times.watch_s
                ended = await children.wait_exit(child, pause_s)
                if ended is not None and ended.exit is not None:
                    raise EngineExited(await self._why(ended.exit))
                self._tools.oom.look()
                healthy = await self._probe.healthy()
                now = time.monotonic()
                if healthy:
                    answered = now
                    if state.load_s is None:
                        state = await self._became_healthy(state, now - born)
                        progress.moved(now)
                elif state.load_s is None:
                    await self._check_loading(child, now - born)
                elif now - answered >= times.hung_s:
                    await self._end_hung(child, f"no answer on /health for {times.hung_s:g} s")
                if healthy and now - scraped >= times.scrape_s:
                    scraped = now
                    signs = await self._probe.signs()
                    progress.look(signs, time.monotonic())
                    if signs is not None and signs.load != self.status.load:
                        self._set(load=signs.load)
                trial = await self._check_progress(child, progress, trial)
                if now - looked >= times.report_s:
                    looked = now
                    self._look(await children.members(child))
        finally:
            if trial is not None:
                trial.cancel()

    async def _check_progress(
        self, child: Child, progress: Progress, trial: asyncio.Task[bool] | None
    ) -> asyncio.Task[bool] | None:
        """End an engine that has requests and does nothing (ReplicaNotReady); the question to it
        that is under way."""
        now = time.monotonic()
        if trial is not None and trial.done():
            if trial.result():
                progress.moved(now)
            trial = None
        if progress.still_s(now) > self._tools.times.stall_s / 4:
            pids = await self._tools.children.members(child)
            progress.on_cpu_time(usage_of(pids).cpu_s, now)
        if progress.is_hung(now):
            await self._end_hung(child, progress.why(now))
        if trial is None and progress.in_doubt(now):
            trial = asyncio.create_task(self._probe.answers(progress.limit_s / 2))
        return trial

    async def _end_hung(self, child: Child, why: str) -> None:
        await self._tools.children.end_session(child, 0.0)
        raise ReplicaNotReady(f"hung: {why}")

    def _look(self, pids: Collection[int]) -> None:
        """What its processes hold, and where they may run, against the plan: somebody may have
        changed it."""
        mem_mib = round(usage_of(pids).mem_mib / _MEM_STEP_MIB) * _MEM_STEP_MIB
        if mem_mib != self.status.mem_mib:
            self._set(mem_mib=mem_mib)
        seen = look(self.binding, pids, self._place.topology)
        if seen is None:
            return
        if seen.off_plan is not None and self.status.off_plan is None:
            log.error("%s: %s", self._name, seen.off_plan)
        before = self.status
        if (seen.cpus, seen.mem_nodes, seen.off_plan) != (
            before.cpus_actual,
            before.mems_actual,
            before.off_plan,
        ):
            self._set(cpus_actual=seen.cpus, mems_actual=seen.mem_nodes, off_plan=seen.off_plan)

    async def _became_healthy(self, state: EngineState, load_s: float) -> EngineState:
        state = dataclasses.replace(
            state,
            load_s=load_s,
            max_model_len=await self._probe.max_model_len(),
        )
        self._tools.states.write(state)
        self._set(
            phase="healthy", cause=None, load_s=state.load_s, max_model_len=state.max_model_len
        )
        log.info("%s: healthy after %.1f s", self._name, load_s)
        return state

    async def _check_loading(self, child: Child, age_s: float) -> None:
        limit_s = self._tools.plan.timeouts.ready_s
        if age_s > limit_s:
            await self._tools.children.end_session(child, 0.0)
            raise ReplicaNotReady(f"no answer on /health {limit_s:g} s after its start")

    async def _why(self, exit_code: int) -> str:
        killed = self._tools.oom.has_killed()
        try:
            text = tail(self._place.log, TAIL_BYTES)
        except (ExaslurmError, OSError) as error:
            text = f"exaslurm: its log cannot be read: {error}"
        shown = self._place.shown_log or self._place.log
        return cause_of_end(exit_code, text, memory=killed, log_name=str(shown))

    def _set(self, **values: Any) -> None:
        self.status = dataclasses.replace(self.status, **values)
        self._changed()


def child_name(replica: str) -> str:
    """What init calls the engine of a replica."""
    return f"engine:{replica}"


def _can_bind(address: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections that wait out their last minute are not in the way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise PreflightFailed(f"cannot use {address}:{port}") from error
    return True
