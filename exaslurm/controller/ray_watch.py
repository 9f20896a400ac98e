"""Keeps the view of Ray current: a driver for the present epoch, its nodes, its groups."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from exaslurm.controller.cell import Cell
from exaslurm.controller.replicas import Replica
from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.cell import RayTarget
from exaslurm.core.node_values import conditions
from exaslurm.raycluster.client import RayClient, RayError, driver_environ
from exaslurm.raycluster.selectors import selector
from exaslurm.raycluster.start import NODE_LABEL, SLOT_RESOURCE, auth_env
from exaslurm.rundir import RunDir
from exaslurm.util.waiting import within

log = logging.getLogger(__name__)

_CONNECT_S = 60.0
_CALL_S = 20.0
_ACCEPT_S = 2.0
_FAST_S, _SLOW_S = 0.25, 2.0
_TRIES = 3


class RayWatch:
    """One driver process at a time; ``changed`` is called when the view changed."""

    def __init__(
        self, cell: Cell, run_dir: RunDir, environ: Mapping[str, str], changed: Callable[[], None]
    ) -> None:
        self._cell = cell
        self._run_dir = run_dir
        self._environ = environ
        self._changed = changed
        self._client: RayClient | None = None
        self._failures = 0
        self._failed_epoch = 0
        self._groups_set: Mapping[str, Any] | None = None
        self.group_states: dict[str, str] = {}

    async def run(self) -> None:
        """For ever (until cancelled, which ends the driver)."""
        if not self._cell.ray.enabled:
            await asyncio.Event().wait()  # the end of a keeper is the end of the controller
        try:
            while True:
                target = self._cell.ray.target
                if target is None or self._cell.stopping:
                    await asyncio.sleep(_FAST_S)
                    continue
                try:
                    await self._while_wanted(target)
                except RayError as error:
                    await self._on_error(target, error)
                finally:
                    await self._drop()
        finally:
            await self._drop()

    async def _while_wanted(self, target: RayTarget) -> None:
        """Follow an epoch until there is another, or the cell stops; RayError when it is lost."""
        task = asyncio.create_task(self._follow(target))
        try:
            while not task.done() and target == self._cell.ray.target and not self._cell.stopping:
                await asyncio.wait([task], timeout=_FAST_S)
        finally:
            while not task.done():
                task.cancel()
                await asyncio.wait([task], timeout=_FAST_S)
        if not task.cancelled():
            task.result()

    async def _on_error(self, target: RayTarget, error: RayError) -> None:
        """A driver of this epoch failed. It may be slow: only without its GCS, or after some
        drivers, is the epoch lost."""
        if target != self._cell.ray.target:
            return
        log.warning("Ray (epoch %d): %s", target.epoch, error)
        self._failures = self._failures + 1 if target.epoch == self._failed_epoch else 1
        self._failed_epoch = target.epoch
        if self._failures >= _TRIES or not await self._accepts(target):
            self._cell.ray.lost(str(error), time.monotonic())
            self._changed()
        await asyncio.sleep(_FAST_S)

    async def _follow(self, target: RayTarget) -> None:
        """Watch one epoch, until cancelled; RayError when it is lost."""
        await self._gcs_accepts(target)
        address = f"{target.head_address}:{target.gcs_port}"
        hosts = [target.head_address, "localhost", "127.0.0.1"]
        environ = driver_environ({**self._environ, **auth_env(self._run_dir)}, hosts)
        self._client = await RayClient.connect(
            address, environ, deadline_s=max(_CONNECT_S, self._cell.plan.ray.start_timeout_s)
        )
        log.info("Ray (epoch %d): connected to %s", target.epoch, address)
        failures = 0
        while True:
            complete = False
            try:
                complete = await self._look(self._client)
                failures = 0
            except RayError as error:
                failures += 1
                if failures >= _TRIES or not self._client.is_alive:
                    raise
                log.info("Ray (epoch %d): %s", target.epoch, error)
            await asyncio.sleep(_SLOW_S if complete else _FAST_S)

    async def _gcs_accepts(self, target: RayTarget) -> None:
        """Until then there is nothing to connect to; the head's agent tells if there never is."""
        while True:
            if await self._accepts(target):
                return
            await asyncio.sleep(_FAST_S)

    @staticmethod
    async def _accepts(target: RayTarget) -> bool:
        try:
            connection = asyncio.open_connection(target.head_address, target.gcs_port)
            _, writer = await within(connection, _ACCEPT_S)
        except (OSError, asyncio.TimeoutError):
            return False
        writer.close()
        return True

    async def _look(self, client: RayClient) -> bool:
        nodes = await client.nodes(timeout_s=_CALL_S)
        now = time.monotonic()
        names = {node["labels"].get(NODE_LABEL, "") for node in nodes if node["alive"]}
        wanted = self._cell.wanted_in_ray(now)
        before = (self._cell.ray.alive, self._cell.ray.connected)
        self._cell.ray.on_nodes(names, wanted, now)
        if before != (self._cell.ray.alive, self._cell.ray.connected):
            self._changed()
        complete = self._cell.ray.complete(wanted)
        if complete or self._cell.engines_started:
            await self._record_groups(client)
        return complete

    async def _record_groups(self, client: RayClient) -> None:
        """Tell Ray what the controller decided, so that users' Ray work fits around it."""
        groups = {
            replica.id: group_of(replica.binding, self._selectors(replica))
            for replica in self._cell.replicas.values()
            # vLLM's Ray executor makes a group of its own, for which the GPUs must be free.
            if replica.model.executor == "mp"
        }
        if groups != self._groups_set:
            self.group_states = await client.set_groups(groups, timeout_s=_CALL_S)
            self._groups_set = groups
        elif any(state != "CREATED" for state in self.group_states.values()):
            self.group_states = await client.group_states(timeout_s=_CALL_S)

    def _selectors(self, replica: Replica) -> dict[str, dict[str, str]]:
        """What its model's conditions are in Ray's words, for each of its nodes."""
        wanted = conditions(replica.model.constraints)
        found = {}
        for name in replica.binding.nodes:
            node = self._cell.members.nodes.get(name)
            if wanted and node is not None and node.report is not None:
                found[name] = selector(wanted, node.report.facts.labels)
        return found

    async def _drop(self) -> None:
        client, self._client = self._client, None
        self._groups_set = None
        self.group_states = {}
        if client is not None:
            await client.close()


def group_of(
    binding: ReplicaBinding, selectors: Mapping[str, Mapping[str, str]] | None = None
) -> dict[str, Any]:
    """The placement group of a replica: one bundle on each of its nodes. Cores that it shares
    with other replicas (a node smaller than Slurm was told) are not taken from Ray's count.
    ``selectors``: more label selectors, by node."""
    parts = binding.parts()
    more = selectors or {}
    return {
        "bundles": [_bundle(part) for part in parts],
        "selectors": [{NODE_LABEL: part.node, **more.get(part.node, {})} for part in parts],
    }


def _bundle(part: ReplicaBinding) -> dict[str, float]:
    bundle: dict[str, float] = {SLOT_RESOURCE: 1}
    if part.gpus:
        bundle["GPU"] = len(part.gpus)
    if part.pinned and part.cores:
        bundle["CPU"] = len(part.cores)
    return bundle
