"""Canaries against a real HTTP server that answers as engines do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from exaslurm.controller import canary
from tests.controller.conftest import make_plan

Serve = Callable[[dict[str, Any]], Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    servers = []

    async def start(answers: dict[str, Any]) -> str:
        async def handle(request: web.Request) -> web.Response:
            seen.append((request.path, request.headers.get("Authorization")))
            status = answers.get(request.path, 404)
            if status == "hang":
                await asyncio.sleep(30)
            if status == "garbage":
                return web.Response(status=500, body=b"\xff\xfe\x00", content_type="text/plain")
            return web.Response(status=status, text="because of " + request.path)

        seen: list[tuple[str, str | None]] = []
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", handle)
        app[SEEN] = seen
        server = TestServer(app)
        await server.start_server()
        servers.append(server)
        start.seen = seen  # type: ignore[attr-defined]
        return f"http://127.0.0.1:{server.port}"

    yield start
    for server in servers:
        await server.close()


SEEN = web.AppKey("seen", list)


async def ask(url: str, *, timeout_s: float = 5.0, **engine_args: Any) -> str | None:
    model = make_plan(engine_args=engine_args).models[0]
    async with aiohttp.ClientSession() as session:
        return await canary.send(session, url, "secret", model, "m", timeout_s=timeout_s)


async def test_chat(serve: Serve) -> None:
    url = await serve({"/v1/chat/completions": 200})
    assert await ask(url) is None
    assert serve.seen == [("/v1/chat/completions", "Bearer secret")]  # type: ignore[attr-defined]


async def test_a_model_without_a_chat_template(serve: Serve) -> None:
    assert await ask(await serve({"/v1/chat/completions": 400, "/v1/completions": 200})) is None


async def test_an_answer_that_is_no_text(serve: Serve) -> None:
    cause = await ask(await serve({"/v1/chat/completions": "garbage"}))
    assert cause is not None
    assert cause.startswith("/v1/chat/completions answered 500: ")


async def test_an_embedding_model_that_nothing_tells(serve: Serve) -> None:
    assert await ask(await serve({"/v1/embeddings": 200})) is None


async def test_an_embedding_model_that_says_so(serve: Serve) -> None:
    url = await serve({"/v1/embeddings": 200})
    assert await ask(url, runner="pooling") is None
    assert [path for path, _ in serve.seen] == ["/v1/embeddings"]  # type: ignore[attr-defined]


async def test_an_engine_that_refuses_everything_says_why(serve: Serve) -> None:
    """Not that it has no path for the last kind of request."""
    cause = await ask(await serve({"/v1/chat/completions": 400, "/v1/completions": 400}))
    assert cause == "/v1/chat/completions answered 400: because of /v1/chat/completions"
    cause = await ask(await serve({"/v1/embeddings": 400}))
    assert cause == "/v1/embeddings answered 400: because of /v1/embeddings"


@pytest.mark.parametrize("status", [401, 500, 503])
async def test_an_engine_that_is_not_well(serve: Serve, status: int) -> None:
    cause = await ask(await serve({"/v1/chat/completions": status, "/v1/completions": 200}))
    assert cause == (f"/v1/chat/completions answered {status}: because of /v1/chat/completions")


async def test_no_answer(serve: Serve) -> None:
    cause = await ask(await serve({"/v1/chat/completions": "hang"}), timeout_s=0.2)
    assert cause is not None
    assert "no answer to a request in 0.2 s" in cause


async def test_nobody_there(serve: Serve, unused_tcp_port: int) -> None:
    cause = await ask(f"http://127.0.0.1:{unused_tcp_port}")
    assert cause is not None
    assert str(unused_tcp_port) in cause


async def test_health(serve: Serve, unused_tcp_port: int) -> None:
    good = await serve({"/health": 200})
    bad = await serve({"/health": 503})
    async with aiohttp.ClientSession() as session:
        assert await canary.is_healthy(session, good, timeout_s=2)
        assert not await canary.is_healthy(session, bad, timeout_s=2)
        nobody = f"http://127.0.0.1:{unused_tcp_port}"
        assert not await canary.is_healthy(session, nobody, timeout_s=2)
