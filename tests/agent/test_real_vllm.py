"""The agent with the real vLLM: start, guard, kill, stop."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from exaslurm.core.plan import ModelSource
from exaslurm.keys.token import Claims, TokenSigner
from tests.agent.harness import REPOSITORY, Node, command_of, make_plan

ENV = Path(os.environ.get("EXASLURM_ENV", "/opt/exaslurm/env"))
UP_S = 180.0

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    script = REPOSITORY / "tests" / "tools" / "tiny_model.py"
    subprocess.run([ENV / "bin" / "python", script, directory], check=True, timeout=120)
    return directory


@pytest.fixture
async def node(root: Path, tiny: Path) -> AsyncIterator[Node]:
    plan = make_plan(root, args={"kv-cache-memory-bytes": 32 << 20})
    (model,) = plan.models
    source = ModelSource(kind="path", value=str(tiny))
    plan = dataclasses.replace(
        plan,
        models=(dataclasses.replace(model, source=source),),
        node=dataclasses.replace(plan.node, python=str(ENV / "bin" / "python")),
        timeouts=dataclasses.replace(plan.timeouts, stage_s=120.0, ready_s=UP_S, drain_s=5.0),
    ).sealed()
    node = Node(root, plan, fake=False)
    node.want(node.binding())
    await node.start()
    yield node
    await node.stop()


async def statuses(node: Node, headers: dict[str, str]) -> dict[str, int]:
    url = f"http://127.0.0.1:{node.binding().port}"
    body = {"model": "m:base", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    found = {}
    async with aiohttp.ClientSession() as session:
        for path in ("/health", "/v1/models", "/metrics", "/version", "/load", "/docs"):
            async with session.get(url + path, headers=headers) as answer:
                found[path] = answer.status
        for path in ("/tokenize", "/pause", "/invocations", "/v1/chat/completions"):
            async with session.post(url + path, headers=headers, json=body) as answer:
                found[path] = answer.status
    return found


async def open_without_key(node: Node) -> set[str]:
    """Of all paths that the engine says it has."""
    url = f"http://127.0.0.1:{node.binding().port}"
    key = {"Authorization": f"Bearer {node.key}"}
    found = set()
    async with aiohttp.ClientSession() as session:
        async with session.get(url + "/openapi.json", headers=key) as answer:
            paths = (await answer.json())["paths"]
        assert len(paths) > 20
        for path, methods in paths.items():
            for method in methods:
                where = url + path.replace("{response_id}", "resp_1")
                async with session.request(method, where, json={}) as answer:
                    if answer.status != 401:
                        found.add(path)
    return found


async def with_token(node: Node) -> dict[str, int]:
    """What a token for the model opens, and what it does not."""
    claims = Claims(
        key_name="alice",
        replica=node.binding().id,
        models=("m:base",),
        expires_at_s=int(time.time()) + 60,
    )
    headers = {"Authorization": f"Bearer {TokenSigner(node.key).sign(claims)}"}
    url = f"http://127.0.0.1:{node.binding().port}"
    body: dict[str, object] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    found = {}
    async with aiohttp.ClientSession(headers=headers) as session:
        for model in ("m:base", "m", ""):
            chat = url + "/v1/chat/completions"
            async with session.post(chat, json={**body, "model": model}) as answer:
                found[model] = answer.status
        for path in ("/v1/models", "/metrics"):
            async with session.get(url + path) as answer:
                found[path] = answer.status
        async with session.post(
            url + "/tokenize", json={"model": "m:base", "prompt": "x"}
        ) as answer:
            found["/tokenize"] = answer.status
    return found


async def test_life_of_an_engine(node: Node) -> None:
    shared_memory = set(os.listdir("/dev/shm"))
    engine = await node.engine(lambda e: e.phase in ("healthy", "failed"), UP_S)
    log = node.node_dir / "logs" / "c000-r0000.log"
    assert engine.phase == "healthy", engine.cause
    assert engine.max_model_len is not None
    engine = await node.engine(lambda e: e.load is not None and e.cpus_actual is not None)
    assert engine.cpus_actual == node.binding().cores

    refused = await statuses(node, {})
    assert refused.pop("/health") == 200
    assert set(refused.values()) == {401}
    answered = await statuses(node, {"Authorization": f"Bearer {node.key}"})
    assert answered["/v1/chat/completions"] == answered["/metrics"] == 200
    assert node.key not in log.read_text()
    assert await open_without_key(node) == {"/health"}
    assert await with_token(node) == {
        "m:base": 200,
        "m": 403,
        "": 400,
        "/v1/models": 200,
        "/metrics": 401,
        "/tokenize": 200,
    }

    before = set(node.processes())
    os.kill(engine.pid or 0, signal.SIGKILL)
    again = await node.engine(lambda e: e.phase == "healthy" and e.pid != engine.pid, UP_S)
    assert again.restarts == 1
    left = before & set(node.processes())
    assert [pid for pid in left if "vllm" in command_of(pid).lower()] == []

    await node.push(stop=True)
    assert await node.ended(40) == 0
    assert node.processes() == []
    assert not node.node_dir.exists()
    assert set(os.listdir("/dev/shm")) - shared_memory == set()
