"""A simulated cluster with a real deployment on it: Slurm and nodes here, the rest in processes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exaslurm.bootstrap.marker import begin
from exaslurm.core import ports
from exaslurm.core.cell import CellState
from exaslurm.core.marker import BootstrapMarker
from exaslurm.core.plan import Plan
from exaslurm.errors import ExaslurmError, NotReadyError
from exaslurm.keys.clients import add_key
from exaslurm.keys.secrets import read_secret
from exaslurm.registry.client import fetch_states
from exaslurm.registry.read import read_records
from exaslurm.rundir import GenerationDir, RunDir
from exaslurm.simulate import proc, wire
from exaslurm.simulate.layout import Layout
from exaslurm.simulate.slurm import SOCKET, SimulatedSlurm
from exaslurm.simulate.slurmctld import Event, Job, Slurmctld
from exaslurm.submit.records import read_plan
from exaslurm.submit.submit import submit
from exaslurm.util.clock import VARIABLE, Clock
from exaslurm.util.files import make_private_dir, write_atomic

log = logging.getLogger(__name__)

_TICK_S = 0.1
_MOUNT_S = 20.0
_START_S = 60.0
_END_S = 20.0
_UNMOUNT_S = 5.0
_HOSTS = 4
_AGAIN_S = 5.0


class World:
    """Everything that runs. ``clock`` is that of all its processes."""

    def __init__(self, directory: Path, layout: Layout, clock: Clock, *, shared: bool) -> None:
        self.directory = directory
        self.layout = layout
        self.clock = clock
        self.slurm = Slurmctld(dict.fromkeys(layout.names(), "plain"))
        self.state = directory / "state"
        self.run_dir = RunDir(self.state / "exaslurm" / "soak")
        self.plan: Plan
        self.turns: dict[str, str] = {}
        self.router: asyncio.subprocess.Process | None = None
        self.supervisor: asyncio.subprocess.Process | None = None
        self.url = ""
        # Which effect of the supervisor's it shall not survive: "" (none), "before", "after".
        self.armed = ""
        self.shot = asyncio.Event()
        # How often a process has ended that nobody had killed.
        self.unforeseen = 0
        self._shared = shared
        self._mount: asyncio.subprocess.Process | None = None
        self._server: asyncio.Server | None = None
        self._hosts: list[asyncio.subprocess.Process] = []
        self._host_of: dict[str, asyncio.subprocess.Process] = {}
        self._addresses: dict[str, str] = {}
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._key = ""

    # --- bringing up, ending ---------------------------------------------------------------------

    @property
    def environ(self) -> dict[str, str]:
        """Of every process of the simulation."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SBATCH_", "SLURM_"))}
        return {
            **kept,
            "EXASLURM_HOME": str(self.state),
            "EXASLURM_SITE_CONFIG": str(self.directory / "sites"),
            SOCKET: str(self.directory / "slurm.sock"),
            VARIABLE: str(self.clock),
            "PYTHONUNBUFFERED": "1",
        }

    async def start(self) -> None:
        """Nodes, Slurm, the deployment's jobs, supervisor and router; not waiting for replicas."""
        make_private_dir(self.directory)
        make_private_dir(self.directory / "logs")
        await self._mount_shared()
        sites = self.directory / "sites"
        make_private_dir(sites)
        write_atomic(sites / "simulated.yaml", self.layout.site(self.state))
        spec = self.directory / "spec.yaml"
        write_atomic(spec, self.layout.spec())
        self._server = await asyncio.start_unix_server(
            self._answer, self.directory / "slurm.sock", limit=wire.LIMIT_BYTES
        )
        await self._start_hosts()
        self.spawn(self._live())
        environ = self.environ
        done = await asyncio.to_thread(submit, spec, environ=environ, slurm=SimulatedSlurm(environ))
        self.plan = done.plan
        self._key = read_secret(self.run_dir.internal_key)
        await self.start_supervisor()
        await self._start_router()

    async def close(self) -> None:
        """Nothing is left."""
        self.file_system(go=True)
        for task in self._tasks:
            task.cancel()
        for process in (self.supervisor, self.router):
            if process is not None and process.returncode is None:
                process.terminate()
        for host in self._hosts:
            if host.stdin is not None:
                host.stdin.close()
        waits = [p.wait() for p in (self.supervisor, self.router, *self._hosts) if p is not None]
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.gather(*waits), _END_S)
        for process in (self.supervisor, self.router, *self._hosts):
            if process is not None and process.returncode is None:
                process.kill()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        if self._mount is not None:
            unmount = await asyncio.create_subprocess_exec(
                "fusermount3", "-u", "-z", str(self.state)
            )
            await unmount.wait()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._mount.wait(), _UNMOUNT_S)
            if self._mount.returncode is None:
                self._mount.kill()
                await self._mount.wait()

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """A task that ends with the world; its failure is logged."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("unforeseen", exc_info=task.exception())

    async def _mount_shared(self) -> None:
        """The shared file system is a mount of its own where that can be had, so that it can be
        stopped."""
        make_private_dir(self.state)
        if not self._shared:
            return
        if shutil.which("bindfs") is None:
            raise NotReadyError("no bindfs here", remedy="apt-get install bindfs")
        behind = self.directory / "disk"
        make_private_dir(behind)
        self._mount = await asyncio.create_subprocess_exec(
            "bindfs", "-f", "--no-allow-other", str(behind), str(self.state)
        )
        until_s = time.monotonic() + _MOUNT_S
        while not await asyncio.to_thread(os.path.ismount, self.state):
            if time.monotonic() > until_s or self._mount.returncode is not None:
                raise NotReadyError(f"bindfs does not mount {self.state}")
            await asyncio.sleep(_TICK_S)

    def file_system(self, *, go: bool) -> None:
        """Have every access to the shared file system wait, or go on."""
        if self._mount is not None and self._mount.returncode is None:
            self._mount.send_signal(signal.SIGCONT if go else signal.SIGSTOP)

    async def _start_hosts(self) -> None:
        names = self.layout.names()
        net = os.getpid() % 250 + 2
        self._addresses = {name: f"127.{net}.0.{n}" for n, name in enumerate(names, 1)}
        count = min(_HOSTS, len(names))
        for number in range(count):
            mine = names[number::count]
            words = [f"{name}={self._addresses[name]}" for name in mine]
            host = await self._python(
                f"host{number}",
                "exaslurm.simulate.host",
                *("--directory", str(self.directory / "nodes")),
                *(word for item in words for word in ("--node", item)),
                piped=True,
            )
            self._hosts.append(host)
            self._host_of |= dict.fromkeys(mine, host)
            self.spawn(self._hear(host))
        ready = await asyncio.gather(*(self.ask(name, "look") for name in names[:count]))
        if None in ready:
            raise NotReadyError(f"the nodes do not start: see {self.directory / 'logs'}")

    async def start_supervisor(self) -> None:
        """Another one."""
        self.supervisor = process = await self._python(
            "supervisor", "exaslurm.simulate.supervisor", str(self.run_dir.path)
        )
        self.spawn(self._keep_supervisor(process))

    async def _keep_supervisor(self, process: asyncio.subprocess.Process) -> None:
        """One that ends without having been killed is started again, and counted."""
        code = await process.wait()
        if code != -signal.SIGKILL and process is self.supervisor:
            self.unforeseen += 1
            log.error("the supervisor has ended with %d", code)
            await asyncio.sleep(self.clock.machine_s(_AGAIN_S))
            await self.start_supervisor()

    async def _start_router(self) -> None:
        self.router = await self._python(
            "router",
            "exaslurm.gateway",
            *("--run-dir", str(self.run_dir.path), "--bind", "127.0.0.1", "--port", "0"),
        )
        until_s = time.monotonic() + _START_S
        while True:
            with contextlib.suppress(ExaslurmError, OSError, IndexError, ValueError):
                text = (self.directory / "logs" / "router.log").read_text()
                found = re.search(r"https?://127\.0\.0\.1:\d+", text)
                if found:
                    self.url = found.group()
                    return
            if time.monotonic() > until_s or self.router.returncode is not None:
                raise NotReadyError("the router does not start")
            await asyncio.sleep(_TICK_S)

    @property
    def has_shared(self) -> bool:
        """Whether the shared file system can be stopped."""
        return self._mount is not None

    def client_key(self) -> str:
        """A key for clients of the router."""
        return add_key(self.run_dir, "load")

    async def _python(
        self, name: str, module: str, *words: str, piped: bool = False
    ) -> asyncio.subprocess.Process:
        with open(self.directory / "logs" / f"{name}.log", "ab") as output:  # noqa: ASYNC230
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module, *words),
                env=self.environ,
                stdin=asyncio.subprocess.PIPE if piped else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if piped else output,
                stderr=output,
                limit=wire.LIMIT_BYTES,
                start_new_session=True,
            )

    # --- Slurm -----------------------------------------------------------------------------------

    async def _live(self) -> None:
        while True:
            for event in self.slurm.advance(self.clock.wall()):
                self.on(event)
            await asyncio.sleep(_TICK_S)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One command of one client. An armed supervisor does not live to hear the answer."""
        try:
            question = await wire.hear(reader)
            if question is None:
                return
            shoot = ""
            is_effect = question["argv"][0] in ("sbatch", "scancel")
            if is_effect and self.supervisor and question["pid"] == self.supervisor.pid:
                shoot, self.armed = self.armed, ""
            if shoot == "before":
                self._shoot()
                return
            said, events = self.slurm.command(
                question["argv"], question["script"], self.clock.wall()
            )
            for event in events:
                self.on(event)
            if question["argv"][0] == "sbatch" and said.code == 0:
                job = self.slurm.jobs[said.stdout.strip()]
                self.turns[job.id] = _option(job, "cell")
            if shoot == "after":
                self._shoot()
                return
            wire.say(writer, {"code": said.code, "stdout": said.stdout, "stderr": said.stderr})
            await writer.drain()
        finally:
            writer.close()

    def _shoot(self) -> None:
        if self.supervisor is not None and self.supervisor.returncode is None:
            self.supervisor.kill()
        self.shot.set()

    def on(self, event: Event) -> None:
        """Have the nodes do what Slurm has them do."""
        job = self.slurm.jobs[event.job]
        if event.kind == "start":
            self.spawn(self._launch(job, event.nodes))
        elif event.kind in ("terminate", "kill"):
            for node in event.nodes:
                self.order(node, event.kind, job=job.id)

    async def _launch(self, job: Job, nodes: tuple[str, ...]) -> None:
        """What the batch script does: mark the cell's beginning, start a task on each node."""
        gen_dir = GenerationDir(Path(_option(job, "gen-dir")))
        turn = _option(job, "cell")
        plan = await asyncio.to_thread(read_plan, gen_dir)
        marker = BootstrapMarker(
            plan_hash=(plan or self.plan).hash,
            deployment="soak",
            cell=turn,
            job_id=job.id,
            job_name=job.name,
            het_job_ids={"0": job.id},
            nodes={"0": nodes},
            host=nodes[0],
            started_s=self.clock.wall(),
            job_start_s=job.start_s,
        )
        await asyncio.to_thread(gen_dir.make, (turn,))
        await asyncio.to_thread(begin, gen_dir, marker)
        for order, node in enumerate(nodes):
            if not job.is_over:
                self.order(
                    node,
                    "begin",
                    job=job.id,
                    cell=turn,
                    gen_dir=str(gen_dir.path),
                    run_dir=str(self.run_dir.path),
                    head=self._addresses[nodes[0]],
                    port_base=ports.block_base(self.plan.ports, int(job.id)),
                    order=order,
                )

    # --- nodes -----------------------------------------------------------------------------------

    def order(self, node: str, do: str, **more: Any) -> None:
        """Have something done to a node."""
        host = self._host_of[node]
        if host.stdin is not None and not host.stdin.is_closing():
            wire.say(host.stdin, {"node": node, "do": do, **more})

    async def ask(self, node: str, do: str, **more: Any) -> Any:
        """The same, and what came of it; None without an answer."""
        number = next(self._numbers)
        future = self._answers[number] = asyncio.get_running_loop().create_future()
        self.order(node, do, ask=number, **more)
        try:
            done, _ = await asyncio.wait([future], timeout=_END_S)
            return future.result() if done else None
        finally:
            self._answers.pop(number, None)

    async def _hear(self, host: asyncio.subprocess.Process) -> None:
        assert host.stdout is not None
        while (news := await wire.hear(host.stdout)) is not None:
            if "answer" in news:
                future = self._answers.get(news["answer"])
                if future is not None and not future.done():
                    future.set_result(news["done"])
            elif "ended" in news:
                self._task_ended(news["ended"], news["node"], news["code"])

    def _task_ended(self, ident: str, node: str, code: int) -> None:
        job = self.slurm.jobs[ident]
        head = job.nodes[0] if job.nodes else ""
        self.slurm.task_ended(ident, node, code)
        if node == head:
            event = self.slurm.head_ended(ident, self.clock.wall())
            if event is not None:
                self.on(event)

    # --- looking ---------------------------------------------------------------------------------

    def states(self) -> Mapping[str, CellState]:
        """What the controllers say, by turn. Blocks."""
        records = {record.cell: record.state_url for record in read_records(self.run_dir)}
        return fetch_states(records, self._key, timeout_s=3.0, all_s=10.0)

    def workers(self) -> list[int]:
        """Numbers of the router's workers, the oldest first."""
        return proc.children(self.router.pid) if self.router is not None else []


def _option(job: Job, name: str) -> str:
    """An option of the batch script's last line."""
    found = re.search(rf"--{name} (\S+)", job.script)
    assert found is not None, job.script
    return found[1].strip("'\"\\")
