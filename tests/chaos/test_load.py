"""The clients of a fault: against a server that dies, and one that refuses."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from exaslurm.chaos.asked import classify
from exaslurm.chaos.load import Load, LoadPlan
from exaslurm.errors import NotReadyError

PLAN = LoadPlan(model="m", concurrency=4, stream_share=0.5, max_tokens=3, timeout_s=10.0)


class Server:
    """Answers as a router does, after ``pause_s``; ``status`` to refuse."""

    def __init__(self) -> None:
        self.status = 200
        self.pause_s = 0.01
        self.bodies: list[dict[str, object]] = []
        self.port = 0
        self._runner: web.AppRunner | None = None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == "Bearer secret"
        body = json.loads(await request.read())
        self.bodies.append(body)
        await asyncio.sleep(self.pause_s)
        if self.status != 200:
            return web.json_response({"error": {"message": "no"}}, status=self.status)
        if not body["stream"]:
            return web.json_response({"choices": [1]}, headers={"x-exaslurm-replica": "r"})
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for text in (b'data: {"choices": [1]}\n\n', b"data: [DONE]\n\n"):
            await answer.write(text)
            await asyncio.sleep(self.pause_s)
        return answer

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        assert site._server is not None
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]

    async def stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[Server]:
    server = Server()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def test_half_of_the_requests_are_streams_and_all_are_answered() -> None:
    async with served() as server:
        async with Load(PLAN, address=lambda: server.url, key="secret") as load:
            await load.warm()
        assert {classify(item) for item in load.asked} == {"ok"}
        streams = sum(item.stream for item in load.asked)
        assert abs(2 * streams - len(load.asked)) <= PLAN.concurrency
        prompts = [str(body["messages"]) for body in server.bodies]
        assert len(set(prompts)) == len(prompts)
        assert {item.replica for item in load.asked if not item.stream} == {"r"}


async def test_a_client_may_ask_the_same_again() -> None:
    plan = LoadPlan(model="m", concurrency=2, own_prompts=1)
    async with served() as server:
        async with Load(plan, address=lambda: server.url, key="secret") as load:
            await load.warm()
            await asyncio.sleep(0.3)
        assert len(server.bodies) > 4
        assert len({str(body["messages"]) for body in server.bodies}) == plan.concurrency


async def test_a_rate_is_kept() -> None:
    plan = LoadPlan(model="m", concurrency=4, rate_per_s=20.0)
    async with served() as server, Load(plan, lambda: server.url, "secret") as load:
        await asyncio.sleep(1.0)
    assert len(load.asked) <= 25


async def test_a_router_that_comes_back_costs_one_reconnect() -> None:
    async with served() as server:
        server.pause_s = 0.3
        async with Load(PLAN, lambda: server.url, "secret", reconnects=True) as load:
            await load.warm()
            await asyncio.sleep(0.1)
            await server.stop()
            await asyncio.sleep(0.3)
            server.pause_s = 0.01
            await server.start()
            await load.warm()
            await asyncio.sleep(0.2)
    assert [item for item in load.asked if classify(item, router_died=True) != "ok"] == []
    assert 1 <= sum(item.reconnected for item in load.asked) <= PLAN.concurrency


async def test_a_connection_that_is_lost_is_told_where_no_router_was_killed() -> None:
    async with served() as server:
        server.pause_s = 0.3
        async with Load(PLAN, lambda: server.url, "secret") as load:
            await load.warm()
            await asyncio.sleep(0.1)
            await server.stop()
            await asyncio.sleep(0.2)
            await server.start()
    found = [classify(item) for item in load.asked]
    assert set(found) <= {"ok", "not_begun", "begun_cut"}
    assert "not_begun" in found
    assert not any(item.reconnected for item in load.asked)


async def test_silence_is_measured_while_somebody_waits() -> None:
    async with served() as server:
        server.pause_s = 0.4
        plan = LoadPlan(model="m", concurrency=1, stream_share=0.0)
        async with Load(plan, address=lambda: server.url, key="secret") as load:
            await asyncio.sleep(0.5)
    assert max(end - begin for begin, end in load.silences) >= 0.35


async def test_without_a_service_nothing_is_begun() -> None:
    async with served() as server:
        server.status = 503
        async with Load(PLAN, lambda: server.url, "secret") as load:
            with pytest.raises(NotReadyError, match=r"before anything is done to it: .*no"):
                await load.warm(0.5)
