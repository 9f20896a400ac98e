"""What init is to an agent, for simulated nodes: engines in this process, all else real ones."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections.abc import Awaitable
from pathlib import Path

from exaslurm.agent.children import Child, Children
from exaslurm.core.execspec import ExecSpec
from exaslurm.engines.simulated.options import parse
from exaslurm.simulate.engines import Engine
from exaslurm.util.clock import VARIABLE, Clock

_ENGINE = "exaslurm.engines.simulated"
# Above every number that the kernel gives to a process: nothing real can be meant.
_numbers = itertools.count(5_000_000)


class SimulatedChildren(Children):
    """The processes of one node. They outlive its agents, as init's do."""

    def __init__(self, node_dir: Path, clock: Clock) -> None:
        super().__init__(node_dir)
        self.started_s = clock.wall()
        self.directory = node_dir
        self._clock = clock
        self._engines: dict[str, Engine] = {}
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._watches: set[asyncio.Task[None]] = set()

    # --- for the agent ---------------------------------------------------------------------------

    async def refresh(self) -> None:
        """The table is always true."""

    async def keep_fresh(self) -> None:
        await asyncio.Event().wait()

    async def spawn(self, name: str, spec: ExecSpec) -> Child:
        pid = next(_numbers)
        if _ENGINE in spec.argv:
            options, _ = parse(spec.argv[spec.argv.index(_ENGINE) + 1 :])
            engine = Engine(options, self._clock.machine_s(options.load_s))
            self._engines[name] = engine
            ended: Awaitable[object] = engine.ended.wait()
        else:
            process = await self._start(name, spec)
            self._processes[name] = process
            pid = process.pid
            ended = process.wait()
        child = Child(name, pid, pid, time.time())
        self._set(child)
        task = asyncio.create_task(self._mourn(child, ended))
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)
        return child

    async def signal(
        self,
        child: Child,
        number: signal.Signals,
        *,
        session: bool = False,  # noqa: ARG002
        spare_trackers: bool = False,  # noqa: ARG002
    ) -> int:
        now = self.get(child.name)
        if now is None or now.pid != child.pid or now.exit is not None:
            return 0
        if child.name in self._processes:
            with contextlib.suppress(ProcessLookupError):
                self._processes[child.name].send_signal(number)
        elif number == signal.SIGKILL:
            self._engines[child.name].kill()
        return 1

    async def members(self, child: Child) -> list[int]:  # noqa: ARG002
        """None that could be looked at."""
        return []

    async def forget(self, name: str) -> None:
        child = self.get(name)
        if child is not None and child.exit is not None:
            self._table.pop(name, None)
            self._engines.pop(name, None)
            self._processes.pop(name, None)

    async def end_session(self, child: Child, grace_s: float, kill_s: float = 10.0) -> bool:
        engine = self._engines.get(child.name)
        now = self.get(child.name)
        if now is None or now.pid != child.pid or now.exit is not None:
            return True
        if engine is not None:
            if grace_s > 0:
                engine.terminate(grace_s)
                await self.wait_exit(child, grace_s)
            engine.kill()
            await self.wait_exit(child, kill_s)
            return True
        return await super().end_session(child, grace_s, kill_s)

    def close(self) -> None:
        """There is no connection to close."""

    # --- for the simulation ----------------------------------------------------------------------

    @property
    def engines(self) -> dict[str, Engine]:
        """The engines that run, by the name of the child."""
        return {name: engine for name, engine in self._engines.items() if engine.exit is None}

    def pid_of(self, name: str) -> int | None:
        """The number of a real process."""
        process = self._processes.get(name)
        return process.pid if process is not None and process.returncode is None else None

    async def kill_all(self) -> None:
        """Nothing is left."""
        for engine in self._engines.values():
            engine.kill()
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()
        for process in self._processes.values():
            await process.wait()
        await asyncio.gather(*self._watches, return_exceptions=True)

    async def _start(self, name: str, spec: ExecSpec) -> asyncio.subprocess.Process:
        environ = {**os.environ, **self.common_env, **spec.env, VARIABLE: str(self._clock)}
        with open(self.directory / f"{name}.log", "ab") as output:  # noqa: ASYNC230 (local)
            return await asyncio.create_subprocess_exec(
                *spec.argv,
                env=environ,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    async def _mourn(self, child: Child, ended: Awaitable[object]) -> None:
        await ended
        engine, process = self._engines.get(child.name), self._processes.get(child.name)
        code = engine.exit if engine is not None else process.returncode if process else None
        now = self.get(child.name)
        if now is not None and now.pid == child.pid:
            self._set(Child(child.name, child.pid, child.start, child.started_s,
                            exit=-9 if code is None else code, ended_s=time.time()))  # fmt: skip

    def _set(self, child: Child) -> None:
        self._table[child.name] = child
        self._changed.set()
        self._changed = asyncio.Event()
