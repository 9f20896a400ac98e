"""The cell's controller, which runs on the head node beside the agent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from exaslurm.agent.children import Child, Children
from exaslurm.agent.settings import Settings
from exaslurm.core.execspec import ExecSpec
from exaslurm.core.facts import NodeFacts
from exaslurm.errors import AllocationError, ExaslurmError

log = logging.getLogger(__name__)

NAME = "controller"
EX_TEMPFAIL = 75
_RESTART_MIN_S, _RESTART_MAX_S = 0.5, 10.0
_END_S = 15.0


class PortsTakenError(AllocationError):
    """The controller could not have its port; another block of ports must be tried."""


class HeadDuty:
    """Keeps the controller running. A restarted agent adopts it."""

    def __init__(self, settings: Settings, facts: NodeFacts, children: Children) -> None:
        self._settings = settings
        self._facts = facts
        self._children = children
        self._served = settings.node_dir / "controller.served"
        self._has_served = False

    async def run(self) -> None:
        """For ever; raises PortsTakenError if the controller ends with 75 before it ever served."""
        delay_s = _RESTART_MIN_S
        while True:
            began = time.monotonic()
            child = self._children.get(NAME)
            if child is None or child.exit is not None:
                try:
                    child = await self._start(child)
                except (ExaslurmError, OSError) as error:
                    log.error("controller: %s", error)
                    await asyncio.sleep(_RESTART_MAX_S)
                    continue
            else:
                log.info("controller: adopted pid %d", child.pid)
            code = await self._wait(child)
            log.error("controller (pid %d) ended with %d", child.pid, code)
            if code == EX_TEMPFAIL and not self._served.exists():
                raise PortsTakenError(f"port {self._settings.port_base} is taken")
            if time.monotonic() - began > 3 * _RESTART_MAX_S:
                delay_s = _RESTART_MIN_S
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _RESTART_MAX_S)

    def has_served(self) -> None:
        """Called when the controller answered: from now on its port is ours."""
        if not self._has_served:
            self._has_served = True
            with contextlib.suppress(OSError):
                self._served.touch(mode=0o600)

    async def stop(self) -> None:
        """SIGTERM and time to tell the other nodes; call it when ``run`` is cancelled."""
        child = self._children.get(NAME)
        if child is not None:
            await self._children.end_session(child, _END_S)

    async def _start(self, earlier: Child | None) -> Child:
        if earlier is not None:
            await self._children.end_session(earlier, 0.0)  # its Ray driver, for one
        settings = self._settings
        spec = ExecSpec(
            argv=(
                *(settings.plan.node.python, "-m", "exaslurm.controller"),
                *("--gen-dir", str(settings.gen_dir.path), "--run-dir", str(settings.run_dir.path)),
                *("--cell", settings.cell_name, "--address", self._facts.address),
                *("--port-base", str(settings.port_base), "--node", self._facts.node),
                *("--node-dir", str(settings.node_dir)),
                *(("--local",) if settings.local else ()),
            ),
            env={"PYTHONUNBUFFERED": "1"},
            log=str(settings.gen_dir.logs(settings.cell_name) / "controller.log"),
        )
        return await self._children.spawn(NAME, spec)

    async def _wait(self, child: Child) -> int:
        while True:
            ended = await self._children.wait_exit(child, 5.0)
            if ended is not None and ended.exit is not None:
                return ended.exit
