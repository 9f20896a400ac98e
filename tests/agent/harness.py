"""A node for tests: real init, real agent, a controller that the test plays itself."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from exaslurm.core import ports
from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.cell import AgentReport, DesiredState, EngineStatus
from exaslurm.core.codec import dumps, loads
from exaslurm.core.plan import EnginePlan, ModelSource, Plan
from exaslurm.keys.secrets import ensure_secrets, read_secret
from exaslurm.rundir import RunDir
from tests.tools import plans

REPOSITORY = Path(__file__).resolve().parents[2]
FAKE = Path(__file__).with_name("fake_vllm.py")


def free_block() -> int:
    """First port of a block of 500 whose ports that a node uses first are free."""
    for base in range(20000 + os.getpid() % 20 * 500, 32000, 500):
        probes = []
        try:
            for offset in (ports.CONTROLLER, ports.AGENT, ports.ENGINES, ports.ENGINES + 4):
                probe = socket.socket()
                probes.append(probe)
                # As servers do: connections that wait out their last minute are not in the way.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", base + offset))
        except OSError:
            continue
        else:
            return base
        finally:
            for probe in probes:
                probe.close()
    raise RuntimeError("no free block of ports")


def make_plan(root: Path, **engine: Any) -> Plan:
    """Two components and one model, whose engine is the fake one."""
    model = plans.make_model(
        source=ModelSource(kind="none", value="model"),
        engine=EnginePlan(kind="vllm", device="cpu", **engine),
        max_replicas_per_node=4,
    )
    return plans.make_plan(
        deployment="test",
        models=[model],
        cells=plans.make_cells(
            plans.make_component(0, "head"),
            plans.make_component(1, "worker"),
            replicas=[("m", "base", 1)],
        ),
        node=plans.make_environment(
            python=str(root / "bin" / "python"), tmp=str(root), shared=str(root / "shared")
        ),
        nodes_s=20.0,
        stage_s=20.0,
        drain_s=2.0,
    ).sealed()


def make_binding(port_base: int, slot: int = 0) -> ReplicaBinding:
    """A replica on this host, pinned to the first CPU."""
    return ReplicaBinding(
        id=f"c000-r{slot:04d}", model="m", shard="base", node="n1", address="127.0.0.1",
        port=ports.engine_port(port_base, slot), slot=slot,
        cores=(min(os.sched_getaffinity(0)),), pinned=True, mem_nodes=(), gpus=(), hca=None,
    )  # fmt: skip


async def holds(condition: Callable[[], bool], limit_s: float) -> bool:
    """Whether the condition comes true within the limit."""
    deadline = time.monotonic() + limit_s
    while not (held := condition()) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return held


def command_of(pid: int) -> str:
    """Arguments of a living process, separated by blanks."""
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()


class Node:
    """Init and agent of one worker node, and the controller's side of their talk."""

    def __init__(self, root: Path, plan: Plan, *, fake: bool = True) -> None:
        self.root = root
        self.plan = plan
        self.port_base = free_block()
        self.run_dir = RunDir(root / "state" / "test")
        self.run_dir.make()
        ensure_secrets(self.run_dir)
        self.key = read_secret(self.run_dir.internal_key)
        self.gen_dir = self.run_dir.generation(1)
        self.gen_dir.make(("c000",))
        self.gen_dir.plan.write_text(dumps(plan), encoding="utf-8")
        self.log = root / "init.log"
        self.node_dir = root / f"xs-{os.getuid()}-77-1"
        self.reports: list[AgentReport] = []
        self.desired = DesiredState(version=1, ray=None, engines=())
        self.init: subprocess.Popen[bytes] | None = None
        self._runner: web.AppRunner | None = None
        if not fake:
            return
        tools = root / "bin"
        tools.mkdir()
        for name, command in (("python", ""), ("vllm", f"{FAKE} ")):
            tool = tools / name
            tool.write_text(f'#!/bin/sh\nexec {sys.executable} {command}"$@"\n')
            tool.chmod(0o755)

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/report", self._on_report)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        port = self.port_base + ports.CONTROLLER
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.start_init()

    def start_init(self, *extra: str) -> None:
        environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM", "COV_CORE"))
        }
        environ |= {"SLURM_JOB_ID": "77", "SLURM_NODEID": "0", "SLURMD_NODENAME": "n1"}
        with open(self.log, "ab") as log:
            self.init = subprocess.Popen(
                [
                    *(sys.executable, "-m", "exaslurm.bootstrap.init"),
                    *("--gen-dir", str(self.gen_dir.path), "--run-dir", str(self.run_dir.path)),
                    *("--cell", "c000", "--het-group", "1", "--head-host", "127.0.0.1"),
                    *("--port-base", str(self.port_base), "--grace-s", "6", *extra),
                ],
                stdout=log,
                stderr=log,
                cwd=REPOSITORY,
                env=environ,
            )

    async def stop(self) -> None:
        if self.init is not None and self.init.poll() is None:
            self.init.terminate()
            if await self.ended(15) is None:
                self.init.kill()
                self.init.wait(5)
        if self._runner is not None:
            await self._runner.cleanup()
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)

    def binding(self, slot: int = 0) -> ReplicaBinding:
        return make_binding(self.port_base, slot)

    def want(
        self, *replicas: ReplicaBinding, stop: bool = False, kill: tuple[str, ...] = ()
    ) -> None:
        """What the next report is answered with."""
        self.desired = DesiredState(
            version=self.desired.version + 1, ray=None, engines=replicas, stop=stop, kill=kill
        )

    async def push(
        self, *replicas: ReplicaBinding, stop: bool = False, kill: tuple[str, ...] = ()
    ) -> None:
        """Say it to the agent at once."""
        self.want(*replicas, stop=stop, kill=kill)
        url = f"http://127.0.0.1:{self.reports[-1].facts.agent_port}/v1/desired"
        headers = {"Authorization": f"Bearer {self.key}"}
        async with (
            aiohttp.ClientSession() as session,
            session.put(url, headers=headers, data=dumps(self.desired)) as answer,
        ):
            assert answer.status == 204

    async def _on_report(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.Response(status=401)
        self.reports.append(loads(AgentReport, await request.read(), where="report"))
        return web.Response(text=dumps(self.desired))

    async def until(
        self, condition: Callable[[AgentReport], bool], limit_s: float = 20.0
    ) -> AgentReport:
        """The first report from now on that fulfils the condition."""
        deadline = time.monotonic() + limit_s
        seen = max(0, len(self.reports) - 1)
        while time.monotonic() < deadline and self.init is not None and self.init.poll() is None:
            for report in self.reports[seen:]:
                if condition(report):
                    return report
            seen = max(seen, len(self.reports) - 1)
            await asyncio.sleep(0.05)
        last = self.reports[-1] if self.reports else None
        raise AssertionError(f"not within {limit_s} s; last: {last}\n{self.log.read_text()}")

    async def engine(
        self, condition: Callable[[EngineStatus], bool], limit_s: float = 20.0
    ) -> EngineStatus:
        """The first engine's status once it fulfils the condition."""
        report = await self.until(
            lambda report: bool(report.engines) and condition(report.engines[0]), limit_s
        )
        return report.engines[0]

    async def ended(self, limit_s: float) -> int | None:
        """Init's exit code; None if it still runs after the limit."""
        assert self.init is not None
        await holds(lambda: self.init is None or self.init.poll() is not None, limit_s)
        return self.init.returncode

    def processes(self) -> list[int]:
        """Processes that have this node's directory in their environment or arguments."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                except OSError:
                    continue
                if str(self.root).encode() in text:
                    found.append(int(entry.name))
        return found

    def agent_pid(self) -> int:
        assert self.init is not None
        children = Path(f"/proc/{self.init.pid}/task/{self.init.pid}/children").read_text()
        for pid in children.split():
            if b"exaslurm.agent" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
        raise AssertionError("no agent")
