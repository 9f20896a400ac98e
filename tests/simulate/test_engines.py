"""Engines that share a process, and die and hang one by one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest

from exaslurm.engines.middleware import KEY_VARIABLE
from exaslurm.engines.simulated.options import Options
from exaslurm.engines.simulated.timing import TimingModel
from exaslurm.simulate.engines import Engine

BODY = {"model": "chat", "prompt": "x", "max_tokens": 200}


@pytest.fixture
async def engine(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
    monkeypatch.setenv(KEY_VARIABLE, "inner")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    timing = TimingModel(decode_tokens_per_s=20.0)
    engine = Engine(Options(host="127.0.0.1", port=port, names=("chat",), timing=timing), 0.0)
    async with aiohttp.ClientSession() as session:
        for _ in range(200):
            try:
                async with session.get(url(engine) + "/health"):
                    break
            except aiohttp.ClientError:
                await asyncio.sleep(0.02)
    yield engine
    engine.kill()
    await engine.ended.wait()


def url(engine: Engine) -> str:
    return f"http://127.0.0.1:{engine.options.port}"


async def ask(engine: Engine, **changes: object) -> int:
    headers = {"Authorization": "Bearer inner"}
    timeout = aiohttp.ClientTimeout(total=10)
    async with (
        aiohttp.ClientSession(headers=headers, timeout=timeout) as session,
        session.post(url(engine) + "/v1/completions", json={**BODY, **changes}) as answer,
    ):
        await answer.read()
        return answer.status


async def test_it_answers(engine: Engine) -> None:
    assert await ask(engine, max_tokens=2) == 200


async def test_killed_it_resets_its_connections(engine: Engine) -> None:
    asked = asyncio.create_task(ask(engine))
    await asyncio.sleep(0.2)
    assert not asked.done()
    engine.kill()
    assert engine.exit == -9
    with pytest.raises(aiohttp.ClientError):
        await asked
    with pytest.raises(aiohttp.ClientError):
        await ask(engine)


async def test_a_connection_that_it_has_only_just_taken_is_reset_too(engine: Engine) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.options.port)
    engine.kill()  # the kernel has made the connection, the event loop may not know of it yet
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 5.0) == b""
    writer.close()


async def test_hung_it_takes_requests_and_does_not_answer(engine: Engine) -> None:
    engine.hang()
    asked = asyncio.create_task(ask(engine, max_tokens=2))
    await asyncio.wait([asked], timeout=0.5)
    assert not asked.done()
    engine.kill()
    with pytest.raises(aiohttp.ClientError):
        await asked


async def test_told_to_end_it_finishes_what_it_does(engine: Engine) -> None:
    asked = asyncio.create_task(ask(engine, max_tokens=10))
    await asyncio.sleep(0.2)
    engine.terminate(5.0)
    assert await ask(engine) == 500  # vLLM's word for it
    assert await asked == 200
    await asyncio.wait_for(engine.ended.wait(), 5.0)
    assert engine.exit == 0
