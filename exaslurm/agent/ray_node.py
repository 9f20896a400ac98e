"""Ray on this node: started, adopted, rebuilt when the cell's Ray gets a new epoch."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import shutil
import time
from collections.abc import Callable

from exaslurm.agent.children import Child, Children
from exaslurm.agent.first_cause import TAIL_BYTES, cause_of_end
from exaslurm.agent.settings import Settings
from exaslurm.agent.tail import tail
from exaslurm.core import ports
from exaslurm.core.cell import RayNodeStatus, RayTarget
from exaslurm.core.execspec import ExecSpec
from exaslurm.core.facts import NodeFacts
from exaslurm.errors import AllocationError, ExaslurmError
from exaslurm.raycluster.start import auth_env, head_command, worker_command
from exaslurm.util.files import read_text, write_atomic
from exaslurm.util.iothread import IoThread
from exaslurm.util.waiting import set_within, within

log = logging.getLogger(__name__)

NAME = "ray"
_POLL_S = 0.25
_TERM_S = 2.0
_FILE_S = 10.0
_RESTART_MIN_S, _RESTART_MAX_S = 1.0, 30.0


class RayNode:
    """Keeps this node in the Ray that is wanted.

    The head starts its Ray at once, as epoch 1. Where ``ray start`` ends on the head, GCS is lost
    with all it knew: that is reported, and the controller answers with a new epoch. Elsewhere it
    is started again by itself.
    """

    def __init__(
        self,
        settings: Settings,
        facts: NodeFacts,
        children: Children,
        files: IoThread,
        changed: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._facts = facts
        self._children = children
        self._files = files
        self._changed = changed
        self._log = settings.gen_dir.logs(settings.cell_name) / f"{facts.node}.ray.log"
        self._epoch_file = settings.node_dir / "ray.epoch"
        self._target: RayTarget | None = None
        self._wake = asyncio.Event()
        self.status = RayNodeStatus(
            state="starting" if settings.plan.ray.enabled else "off", epoch=0
        )
        if settings.plan.ray.enabled and settings.is_head:
            self.want(
                RayTarget(
                    epoch=self._last_epoch() or 1,
                    head_address=facts.address,
                    gcs_port=facts.port_base + ports.RAY_GCS,
                )
            )

    def want(self, target: RayTarget | None) -> None:
        """The Ray that this node shall belong to; None: keep what there is."""
        if target is not None and target != self._target:
            self._target = target
            self._wake.set()

    def client_env(self) -> dict[str, str]:
        """What makes a process a client of the cluster; empty before it is known."""
        if self._target is None:
            return {}
        address = f"{self._target.head_address}:{self._target.gcs_port}"
        return {"RAY_ADDRESS": address, **auth_env(self._settings.run_dir)}

    async def run(self) -> None:
        """For ever: one Ray after the other. Not to be called where the plan has no Ray."""
        delay_s = _RESTART_MIN_S
        while True:
            await self._wait_for_work(self.status.state == "failed" and self._settings.is_head)
            target = self._target
            assert target is not None
            began = time.monotonic()
            try:
                await self._refuse_lost(target)
                adopted = self._adopt(target)
                child = adopted or await self._start(target)
                await self._watch(child, target, fresh=adopted is None)
            except ExaslurmError as error:
                cause = str(error)
            except OSError as error:
                cause = f"cannot start Ray: {error}"
            else:
                continue  # another target is wanted
            self._set(RayNodeStatus(state="failed", epoch=target.epoch, cause=cause))
            log.error("ray (epoch %d): %s", target.epoch, cause)
            if time.monotonic() - began > 2 * _RESTART_MAX_S:
                delay_s = _RESTART_MIN_S
            await set_within(self._wake, delay_s)
            delay_s = min(2 * delay_s, _RESTART_MAX_S)

    async def stop(self) -> None:
        """End Ray on this node; call it when ``run`` is cancelled."""
        child = self._children.get(NAME)
        if child is not None:
            await self._children.end_session(child, _TERM_S)

    async def _wait_for_work(self, only_new: bool) -> None:
        """Wait for a target; with ``only_new`` for another one than before."""
        if self._target is None or only_new:
            await self._wake.wait()
        self._wake.clear()

    async def _refuse_lost(self, target: RayTarget) -> None:
        """AllocationError where the head's Ray of this epoch ended while no agent was there to see
        it: its GCS is lost, and the others would wait for ever for what it knew."""
        child = self._children.get(NAME)
        lost = child is not None and child.exit is not None
        if lost and self._settings.is_head and self._last_epoch() == target.epoch:
            assert child is not None
            raise AllocationError(await self._why(child.exit or 0))

    def _adopt(self, target: RayTarget) -> Child | None:
        child = self._children.get(NAME)
        if child is None or child.exit is not None or self._last_epoch() != target.epoch:
            return None
        log.info("ray: adopted pid %d (epoch %d)", child.pid, target.epoch)
        return child

    async def _start(self, target: RayTarget) -> Child:
        earlier = self._children.get(NAME)
        if earlier is not None:
            await self._children.end_session(earlier, _TERM_S if earlier.exit is None else 0.0)
            await self._children.wait_exit(earlier, 5.0)
            with contextlib.suppress(OSError):
                await asyncio.to_thread(shutil.rmtree, self._settings.node_dir / "ray")
        self._set(RayNodeStatus(state="starting", epoch=target.epoch))
        if not self._settings.is_head:
            await self._gcs_accepts(target)
        spec = dataclasses.replace(self._command(target), log=str(self._log))
        write_atomic(self._epoch_file, str(target.epoch))
        return await self._children.spawn(NAME, spec)

    def _command(self, target: RayTarget) -> ExecSpec:
        settings = self._settings
        if settings.is_head:
            return head_command(
                settings.plan, self._facts, settings.run_dir, settings.node_dir, target.epoch
            )
        return worker_command(
            settings.plan, self._facts, target, settings.run_dir, settings.node_dir
        )

    async def _gcs_accepts(self, target: RayTarget) -> None:
        """``ray start`` gives up soon, and loudly, where there is no head yet."""
        limit_s = self._settings.plan.ray.start_timeout_s
        deadline = time.monotonic() + limit_s
        while not await accepts(target.head_address, target.gcs_port):
            if self._target != target:
                return
            if time.monotonic() > deadline:
                raise AllocationError(
                    f"Ray's head at {target.head_address}:{target.gcs_port} does not answer "
                    f"since {limit_s:g} s"
                )
            await asyncio.sleep(_POLL_S)

    async def _watch(self, child: Child, target: RayTarget, *, fresh: bool) -> None:
        """Until another target is wanted; AllocationError when ``ray start`` ends. How long an
        adopted one took is not known any more."""
        own_port = self._facts.port_base + ports.RAY_NODE_MANAGER
        while self._target == target:
            ended = await self._children.wait_exit(child, _POLL_S)
            if ended is not None and ended.exit is not None:
                raise AllocationError(await self._why(ended.exit))
            if self.status.state != "up" and await accepts(self._facts.address, own_port):
                seconds = max(0.0, time.time() - child.started_s) if fresh else None
                self._set(RayNodeStatus(state="up", epoch=target.epoch, seconds=seconds))
                log.info("ray: up (epoch %d)", target.epoch)

    async def _why(self, exit_code: int) -> str:
        try:
            text = await self._files.run(tail, self._log, TAIL_BYTES, timeout_s=_FILE_S)
        except (ExaslurmError, OSError):
            text = ""
        return cause_of_end(exit_code, text, memory=None, log_name=str(self._log))

    def _last_epoch(self) -> int | None:
        try:
            return int(read_text(self._epoch_file))
        except (ExaslurmError, ValueError):
            return None

    def _set(self, status: RayNodeStatus) -> None:
        self.status = status
        self._changed()


async def accepts(address: str, port: int) -> bool:
    """Whether somebody accepts connections there."""
    try:
        _, writer = await within(asyncio.open_connection(address, port), 2.0)
    except (OSError, asyncio.TimeoutError):
        return False
    writer.close()
    return True
