"""The controller as a process, with agents and engines that the test plays over real HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from exaslurm.controller import server as controller_server
from exaslurm.core import ports
from exaslurm.core.cell import AgentReport, CellState, DesiredState, EngineStatus
from exaslurm.core.codec import dumps, loads
from exaslurm.core.submission import Submission
from exaslurm.errors import StateError
from exaslurm.keys.secrets import ensure_secrets, read_secret
from exaslurm.registry.read import read_record
from exaslurm.rundir import GenerationDir, RunDir
from tests.controller.conftest import OFF, eventually, facts_of, make_marker, make_plan

REPOSITORY = Path(__file__).resolve().parents[2]


class Agent:
    """Plays the agent of one node, and the engines that it is told to run."""

    def __init__(self, node: str, url: str, key: str, session: aiohttp.ClientSession) -> None:
        self.node = node
        self.url = url
        self.key = key
        self.session = session
        self.desired = DesiredState(version=0, ray=None, engines=())
        self.engines: dict[str, tuple[int, web.AppRunner | None]] = {}
        self.requests: list[str] = []
        self.pushed = 0
        self.phase: Any = "healthy"
        self._runner: web.AppRunner | None = None
        self._task: asyncio.Task[None] | None = None
        self._port = 0

    async def start(self) -> None:
        app = web.Application()
        app.router.add_put("/v1/desired", self._put)
        self._runner, self._port = await _listen(app, 0)
        self._task = asyncio.create_task(self._report_on())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._runner is not None:
            await self._runner.cleanup()
        for _, runner in self.engines.values():
            if runner is not None:  # its port may have been taken
                await runner.cleanup()

    def report(self) -> AgentReport:
        return AgentReport(
            node=self.node,
            cell="c000",
            incarnation="i",
            started_s=1002.0,
            facts=facts_of(self.node, agent_port=self._port),
            seen_version=self.desired.version,
            engines=tuple(
                EngineStatus(
                    replica=name, phase=self.phase, pid=pid, start_ticks=7, stage_s=1.0,
                    load_s=2.0, max_model_len=2048,
                )
                for name, (pid, _) in self.engines.items()
            ),
            ray=OFF,
        )  # fmt: skip

    async def post(self) -> int:
        async with self.session.post(
            self.url + "/v1/report",
            data=dumps(self.report()),
            headers={"Authorization": f"Bearer {self.key}"},
        ) as answer:
            if answer.status == 200:
                text = await answer.text()
                await self._take(loads(DesiredState, text, where="answer"))
            return answer.status

    async def _report_on(self) -> None:
        while True:
            try:
                await self.post()
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)

    async def _put(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == f"Bearer {self.key}"
        self.pushed += 1
        await self._take(loads(DesiredState, await request.text(), where="put"))
        return web.Response(status=204)

    async def _take(self, desired: DesiredState) -> None:
        if desired.version < self.desired.version:
            return
        self.desired = desired
        for place in desired.engines:
            if place.id not in self.engines:
                self.engines[place.id] = (0, None)
                app = web.Application()
                app.router.add_post("/v1/chat/completions", self._chat)
                runner, _ = await _listen(app, place.port)
                self.engines[place.id] = (4000 + place.port, runner)

    async def _chat(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == f"Bearer {self.key}"
        self.requests.append((await request.json())["model"])
        return web.json_response({"choices": []})


@dataclass
class Stage:
    """A run directory, a free block of ports, agents, and the controller's process."""

    run_dir: RunDir
    gen_dir: GenerationDir
    base: int
    key: str
    session: aiohttp.ClientSession
    agents: dict[str, Agent] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.base}"

    @property
    def options(self) -> list[str]:
        return [
            "--gen-dir", str(self.gen_dir.path), "--run-dir", str(self.run_dir.path),
            "--cell", "c000", "--address", "127.0.0.1", "--port-base", str(self.base),
            "--node", "n1", "--node-dir", str(self.run_dir.path),
        ]  # fmt: skip

    def start(self) -> subprocess.Popen[bytes]:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "exaslurm.controller", *self.options],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "http_proxy": "http://127.0.0.1:1"},
        )
        return self.process

    async def state(self) -> CellState | None:
        try:
            async with self.session.get(
                self.url + "/v1/state", headers={"Authorization": f"Bearer {self.key}"}
            ) as answer:
                return loads(CellState, await answer.text(), where="state")
        except aiohttp.ClientError:
            return None

    async def serving(self) -> CellState | None:
        state = await self.state()
        return state if state is not None and state.phase == "serving" else None


async def _listen(app: web.Application, port: int) -> tuple[web.AppRunner, int]:
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    return runner, runner.addresses[0][1]


def free_base() -> int:
    """A controller's port that is free, with the workers' engine ports of ``facts_of``."""
    for base in range(30000, 32000, 10):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", base))
            except OSError:
                continue
            return base - ports.CONTROLLER
    raise AssertionError("no free port")


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    plan = make_plan(replicas=2, nodes=2, min_nodes=2)
    run_dir = RunDir(tmp_path / "d")
    gen_dir = run_dir.generation(1)
    run_dir.make()
    gen_dir.make(("c000",))
    ensure_secrets(run_dir)
    gen_dir.plan.write_text(dumps(plan))
    gen_dir.bootstrap_marker("c000").write_text(dumps(make_marker(plan, ("n2", "n3"))))
    gen_dir.submission("c000").write_text(
        dumps(
            Submission(
                deployment="d", cell="c000", generation=1, plan_hash=plan.hash, token="t",
                job_name="exa-d-c000-t", state="submitted", created_s=990.0, job_id="41",
                submitted_s=991.0,
            )
        )
    )  # fmt: skip
    async with aiohttp.ClientSession(trust_env=False) as session:
        key = read_secret(run_dir.internal_key)
        made = Stage(run_dir, gen_dir, free_base(), key, session)
        made.agents = {node: Agent(node, made.url, key, session) for node in ("n1", "n2", "n3")}
        yield made
        for agent in made.agents.values():
            await agent.stop()
        if made.process is not None:
            made.process.kill()
            made.process.wait(10)


async def start_all(stage: Stage) -> None:
    stage.start()
    for agent in stage.agents.values():
        await agent.start()


async def test_bring_up_restart_and_stop(stage: Stage) -> None:
    await start_all(stage)
    state = await eventually(stage.serving)
    assert {replica.state for replica in state.replicas} == {"ready"}
    assert state.job_id == "41"
    assert stage.agents["n2"].requests == ["m"]

    record = await eventually(lambda: _all_ready(stage))
    assert record.state_url == stage.url
    assert record.generation == 1
    assert {replica.max_model_len for replica in record.replicas} == {2048}
    assert stage.run_dir.record("c000").stat().st_mode & 0o077 == 0
    state = await eventually(lambda: _registered(stage))
    phases = state.replicas[0].phases
    assert (phases.reserve_s, phases.stage_s, phases.load_s) == (11.0, 1.0, 2.0)
    assert 0 <= phases.register_s < 5
    memory = stage.gen_dir.controller_memory("c000")
    await eventually(lambda: f'"register_s":{phases.register_s}' in memory.read_text())
    binding = stage.gen_dir.binding("c000").read_text()

    # kill -9: everything is back, above the old numbers, and no engine is asked to end.
    first = stage.process
    assert first is not None
    versions = {name: agent.desired.version for name, agent in stage.agents.items()}
    places = {name: agent.desired.engines for name, agent in stage.agents.items()}
    first.kill()
    first.wait(10)
    for agent in stage.agents.values():
        agent.requests.clear()
    stage.start()
    state = await eventually(stage.serving)
    await eventually(lambda: all(agent.requests for agent in _workers(stage)))
    for name, agent in stage.agents.items():
        assert agent.desired.version > versions[name]
        assert agent.desired.engines == places[name]
    assert [agent.requests for agent in _workers(stage)] == [["m"], ["m"]]  # one canary each
    again = await eventually(lambda: _above(stage, record.seq))
    assert all(replica.ready for replica in again.replicas)
    assert stage.gen_dir.binding("c000").read_text() == binding
    state = await stage.state()
    assert state is not None
    assert state.replicas[0].phases == phases

    # SIGTERM: the others are told, the record says that nothing is ready.
    assert stage.process is not None
    stage.process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(stage.process.wait, 10) == 0
    assert all(agent.desired.stop for agent in _workers(stage))
    assert not any(r.ready for r in read_record(stage.run_dir.record("c000")).replicas)


def _workers(stage: Stage) -> list[Agent]:
    return [stage.agents["n2"], stage.agents["n3"]]


def _all_ready(stage: Stage) -> Any:
    try:
        record = read_record(stage.run_dir.record("c000"))
    except StateError:
        return None
    return record if record.replicas and all(r.ready for r in record.replicas) else None


def _above(stage: Stage, seq: int) -> Any:
    record = read_record(stage.run_dir.record("c000"))
    return record if record.seq > seq else None


async def _registered(stage: Stage) -> CellState | None:
    state = await stage.state()
    done = state and all(r.phases.register_s is not None for r in state.replicas)
    return state if done else None


async def test_stop_by_request(stage: Stage) -> None:
    await start_all(stage)
    await eventually(stage.serving)
    async with stage.session.post(
        stage.url + "/v1/stop",
        json={"grace_s": 1},
        headers={"Authorization": f"Bearer {stage.key}"},
    ) as answer:
        assert answer.status == 204
    await eventually(lambda: all(agent.desired.stop for agent in stage.agents.values()))
    assert {agent.desired.grace_s for agent in stage.agents.values()} == {1.0}
    state = await stage.state()
    assert state is not None
    assert state.phase == "stopping"
    assert {replica.state for replica in state.replicas} == {"draining"}


async def drain(stage: Stage, body: bytes) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {stage.key}"}
    async with stage.session.post(stage.url + "/v1/drain", data=body, headers=headers) as answer:
        return answer.status, await answer.text()


async def test_drain_by_request(stage: Stage) -> None:
    """A replica, then a node, which the next jobs do without; what is not there is refused."""
    await start_all(stage)
    await eventually(stage.serving)
    assert (await drain(stage, b'{"replicas": ["c000-r0000", "r9"]}'))[0] == 404
    assert (await drain(stage, b'{"replica": ["c000-r0000"]}'))[0] == 400
    assert (await drain(stage, b"nonsense"))[0] == 400
    state = await stage.state()
    assert state is not None
    assert {replica.state for replica in state.replicas} == {"ready"}
    first = state.replicas[0]
    assert (await drain(stage, b'{"replicas": ["c000-r0000"], "reason": "slow"}'))[0] == 204
    state = await stage.state()
    assert state is not None
    assert (state.replicas[0].state, state.replicas[0].cause) == ("draining", "slow")
    body = f'{{"nodes": ["{first.node}"], "reason": "a fan", "excluded_s": 60}}'
    assert (await drain(stage, body.encode()))[0] == 204
    state = await stage.state()
    assert state is not None
    assert [node.state for node in state.nodes if node.node == first.node] == ["drained"]
    excluded = stage.run_dir.excluded("c000")
    await eventually(lambda: excluded.exists() and '"a fan"' in excluded.read_text())


@pytest.mark.parametrize("body", [b"", b"{}"])
async def test_the_whole_cell_drains_without_more_words(stage: Stage, body: bytes) -> None:
    await start_all(stage)
    await eventually(stage.serving)
    assert (await drain(stage, body))[0] == 204
    state = await stage.state()
    assert state is not None
    assert {replica.state for replica in state.replicas} == {"draining"}


async def test_a_change_is_pushed_to_nodes_that_do_not_ask(stage: Stage) -> None:
    stage.start()
    for name in ("n2", "n3"):
        agent = stage.agents[name]
        await agent.start()
    await eventually(lambda: all(agent.desired.version for agent in _workers(stage)))
    for agent in _workers(stage):
        assert agent._task is not None
        agent._task.cancel()
    await stage.agents["n1"].start()
    await eventually(lambda: all(len(agent.desired.engines) == 1 for agent in _workers(stage)))
    assert all(agent.pushed for agent in _workers(stage))


async def test_the_key_guards_every_path_but_health(stage: Stage) -> None:
    stage.start()
    await eventually(stage.state)
    async with stage.session.get(stage.url + "/health") as answer:
        assert answer.status == 200
    for method, path in (
        ("GET", "/v1/state"),
        ("GET", "/v1/ray"),
        ("POST", "/v1/report"),
        ("POST", "/v1/stop"),
        ("GET", "/nothing"),
    ):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": stage.key}):
            async with stage.session.request(method, stage.url + path, headers=headers) as answer:
                assert answer.status == 401, path
                assert stage.key not in await answer.text()


async def test_what_cannot_be_a_report(stage: Stage) -> None:
    stage.start()
    await eventually(stage.state)
    headers = {"Authorization": f"Bearer {stage.key}"}
    async with stage.session.post(stage.url + "/v1/report", data="{}", headers=headers) as answer:
        assert answer.status == 400
        assert "missing" in await answer.text()
    stranger = Agent("n7", stage.url, stage.key, stage.session)
    assert await stranger.post() == 409


async def test_a_taken_port_is_exit_code_75(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", stage.base + ports.CONTROLLER)):
        process = stage.start()
        assert await asyncio.to_thread(process.wait, 15) == 75


async def test_a_plan_that_is_not_the_bootstraps_is_refused(stage: Stage) -> None:
    stage.gen_dir.plan.write_text(dumps(make_plan(replicas=1)))
    process = stage.start()
    assert await asyncio.to_thread(process.wait, 15) == 1


async def test_too_few_nodes_end_the_cell_with_a_reason(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, so that the test need not wait as long as a person may want to look."""
    from exaslurm.controller.__main__ import parse, restore
    from exaslurm.util.iothread import IoThread

    monkeypatch.setattr(controller_server, "FAILED_LINGER_S", 0.2)
    plan = make_plan(replicas=2, nodes=2, min_nodes=2, nodes_s=1.0)
    stage.gen_dir.plan.write_text(dumps(plan))
    stage.gen_dir.bootstrap_marker("c000").write_text(dumps(make_marker(plan, ("n2", "n3"))))
    (stage.gen_dir.logs("c000") / "n3.init.log").write_text("init: no space left on device\n")
    cell, key = restore(parse(stage.options))
    controller = controller_server.Controller(
        cell, stage.run_dir, stage.gen_dir, key,
        address="127.0.0.1", port=stage.base, environ={}, files=IoThread(),
    )  # fmt: skip
    running = asyncio.create_task(controller.run())
    for name in ("n1", "n2"):
        await stage.agents[name].start()

    def why() -> str:
        path = stage.gen_dir.failure("c000")
        return path.read_text() if path.exists() else ""

    reason = await eventually(why)
    assert "component 1: 1 of 2 nodes reported" in reason
    assert "n3: no report" in reason
    assert "no space left on device" in reason
    await eventually(lambda: stage.agents["n2"].desired.stop)
    state = await stage.state()
    assert state is not None
    assert state.phase == "failed"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_without_slurm_the_controller_writes_the_marker(stage: Stage, tmp_path: Path) -> None:
    from exaslurm.controller.__main__ import parse, restore

    node_dir = tmp_path / "node"
    node_dir.mkdir()
    stage.gen_dir.bootstrap_marker("c000").unlink()
    stage.gen_dir.binding("c000").write_text("of an earlier process tree")
    options = parse([*stage.options, "--local", "--node-dir", str(node_dir)])
    cell, _ = restore(options)
    assert cell.marker.job_id == "local"
    assert list(cell.members.nodes) == ["n1"]
    assert not stage.gen_dir.binding("c000").exists()
    again, _ = restore(options)
    assert again.marker == cell.marker
