"""Init and agent on a node, under the faults that they are made for."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Callable

import aiohttp

from tests.agent.harness import Node, command_of, holds

MakeNode = Callable[..., Node]


def healthy(engine) -> bool:
    return engine.phase == "healthy"


async def serving(make_node: MakeNode, behaviour: str = "") -> Node:
    node = make_node(behaviour)
    node.want(node.binding())
    await node.start()
    await node.engine(healthy)
    return node


async def test_an_engine_comes_up_pinned_and_guarded(make_node: MakeNode) -> None:
    node = await serving(make_node)
    engine = await node.engine(lambda e: e.load is not None and e.cpus_actual is not None)
    assert engine.max_model_len == 2048
    assert engine.load is not None
    assert (engine.load.running, engine.load.waiting, engine.load.kv_use) == (2, 1, 0.25)
    assert not engine.load.sleeping
    assert engine.cpus_actual == node.binding().cores
    assert engine.pid is not None
    assert os.getsid(engine.pid) == engine.pid
    assert node.key not in command_of(engine.pid)
    assert node.key not in node.log.read_text()
    assert list((node.node_dir / "exec").iterdir()) == []
    report = node.reports[-1]
    assert (report.node, report.facts.order, report.facts.address) == ("n1", 0, "127.0.0.1")


async def test_sigterm_of_init_leaves_nothing(make_node: MakeNode) -> None:
    node = await serving(make_node, "family")
    assert node.init is not None
    node.init.send_signal(signal.SIGTERM)
    assert await node.ended(10) == 0
    assert node.processes() == []
    assert not node.node_dir.exists()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", node.binding().port))


async def test_stop_from_the_controller_ends_init_with_0(make_node: MakeNode) -> None:
    node = await serving(make_node, "stubborn")
    await node.push(stop=True)
    assert await node.ended(20) == 0, node.log.read_text()
    assert node.processes() == []
    assert not node.node_dir.exists()
    assert node.reports[-1].engines == ()


async def test_a_killed_agent_adopts_what_runs(make_node: MakeNode) -> None:
    node = await serving(make_node)
    before = await node.engine(healthy)
    incarnation = node.reports[-1].incarnation
    os.kill(node.agent_pid(), signal.SIGKILL)
    after = await node.until(lambda report: report.incarnation != incarnation)
    assert after.engines[0] == before or after.engines[0].pid == before.pid
    again = await node.engine(lambda e: healthy(e) and e.load is not None)
    assert (again.pid, again.start_ticks) == (before.pid, before.start_ticks)
    assert (again.restarts, again.load_s) == (0, before.load_s)
    assert after.seen_version == node.desired.version


async def test_an_agent_without_controller_keeps_its_engines(make_node: MakeNode) -> None:
    node = await serving(make_node)
    engine = await node.engine(healthy)
    assert node._runner is not None
    await node._runner.cleanup()
    os.kill(node.agent_pid(), signal.SIGKILL)
    os.kill(engine.pid or 0, signal.SIGKILL)
    url = f"http://127.0.0.1:{node.binding().port}/health"
    deadline = time.monotonic() + 15
    async with aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(url) as answer:
                    assert answer.status == 200
                    break
            except aiohttp.ClientError:
                assert time.monotonic() < deadline, node.log.read_text()
                await asyncio.sleep(0.1)


async def test_a_killed_engine_is_started_again_without_leftovers(make_node: MakeNode) -> None:
    node = await serving(make_node, "family")
    first = await node.engine(healthy)
    family = set(node.processes())
    os.kill(first.pid or 0, signal.SIGKILL)
    failed = await node.engine(lambda e: e.phase == "failed")
    assert failed.cause is not None
    assert failed.cause.startswith("ended by SIGKILL")
    second = await node.engine(lambda e: healthy(e) and e.pid != first.pid)
    assert second.restarts == 1
    assert second.cause is None
    left = set(node.processes()) & family
    assert all("sleep" not in command_of(pid) for pid in left)
    log = node.gen_dir.replica_log("c000-r0000")
    deadline = time.monotonic() + 15
    while not log.exists() or log.read_text().count("===== exaslurm: start") != 2:
        assert time.monotonic() < deadline, "the log does not arrive"
        await asyncio.sleep(0.1)


async def test_the_first_cause_is_named(make_node: MakeNode) -> None:
    node = make_node("crash,echo")
    node.want(node.binding())
    await node.start()
    engine = await node.engine(lambda e: e.restarts >= 2)
    assert engine.cause == "ValueError: the weights are bad"


async def test_an_unknown_option_is_refused_before_any_start(make_node: MakeNode) -> None:
    node = make_node(extra_args=("--max-model-length", "5"))
    node.want(node.binding())
    await node.start()
    engine = await node.engine(lambda e: e.phase == "failed")
    assert engine.cause is not None
    assert "no option --max-model-length; did you mean --max-model-len?" in engine.cause
    assert not node.gen_dir.replica_log("c000-r0000").exists()


async def test_a_taken_port_is_named(make_node: MakeNode) -> None:
    node = make_node()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", node.binding().port))
        other.listen(1)
        node.want(node.binding())
        await node.start()
        engine = await node.engine(lambda e: e.phase == "failed", 30)
        assert engine.cause is not None
        assert f"port {node.binding().port} on n1" in engine.cause
    await node.engine(healthy)


async def test_what_is_not_wanted_any_more_is_stopped(make_node: MakeNode) -> None:
    node = await serving(make_node)
    await node.push(node.binding(1))
    report = await node.until(
        lambda r: [e.replica for e in r.engines if e.phase == "healthy"] == ["c000-r0001"]
    )
    await node.until(lambda r: len(r.engines) == 1)
    assert report.seen_version == node.desired.version
    assert not (node.node_dir / "t" / "c000-r0000").exists()


async def test_a_killed_init_takes_its_engines_along(make_node: MakeNode) -> None:
    node = await serving(make_node, "stubborn")
    assert node.init is not None
    node.init.kill()
    node.init.wait(5)
    assert await holds(lambda: node.processes() == [], 15)
    assert not node.node_dir.exists()


async def test_the_agents_port_asks_for_the_key(make_node: MakeNode) -> None:
    node = await serving(make_node)
    facts = node.reports[-1].facts
    url = f"http://127.0.0.1:{facts.agent_port}"
    key = {"Authorization": f"Bearer {node.key}"}
    async with aiohttp.ClientSession() as session:
        for path in ("/v1/report", "/v1/logs/c000-r0000", "/nothing"):
            async with session.get(url + path) as answer:
                assert answer.status == 401
        async with session.get(f"{url}/v1/logs/c000-r0000?bytes=99", headers=key) as answer:
            assert "vLLM API server" in await answer.text()
        async with session.get(f"{url}/v1/logs/..%2f..%2fplan.json", headers=key) as answer:
            assert answer.status in (400, 404)
        async with session.put(f"{url}/v1/desired", headers=key, data="{}") as answer:
            assert answer.status == 400
        node.want()
        body = json.dumps({"version": node.desired.version, "ray": None, "engines": []})
        async with session.put(f"{url}/v1/desired", headers=key, data=body) as answer:
            assert answer.status == 204
    await node.until(lambda r: r.engines == ())
