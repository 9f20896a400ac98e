"""An engine of a test: aiohttp on loopback or a Unix socket, which does what the test says."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web

PAGE = """\
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="m"}} 2.0
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.5
vllm:engine_sleep_state{{engine="0",model_name="m",sleep_state="awake"}} {awake}
vllm:engine_sleep_state{{engine="0",model_name="m",sleep_state="weights_offloaded"}} {asleep}
"""


class FakeEngine:
    """``mode``: ok, dead (500), hang, wrong (no HTTP), noisy (an endless answer)."""

    def __init__(self, *, key: str | None = None) -> None:
        self.key = key
        self.mode = "ok"
        self.names = ["chat"]
        self.root = "/m/chat"
        self.asleep = False
        self.paused: bool | None = None
        self.running = 1
        self.asked: Counter[str] = Counter()
        self.url = ""
        self._runner: web.AppRunner | None = None
        self._port = 0

    async def start(self, unix: Path | None = None) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        if unix is not None:
            await web.UnixSite(self._runner, unix).start()
            self.url = f"unix:{unix}"
            return
        await web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True).start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked[request.path] += 1
        if self.mode == "hang":
            await asyncio.sleep(60)
        if self.mode == "wrong":
            assert request.transport is not None
            request.transport.write(b"SSH-2.0-OpenSSH_9.2\r\n")
            await asyncio.sleep(60)
        if request.path == "/health":
            return web.Response(status=500 if self.mode == "dead" else 200)
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if request.path == "/v1/models":
            cards = [{"id": name, "root": self.root, "max_model_len": 4096} for name in self.names]
            return web.json_response({"object": "list", "data": cards})
        if request.path == "/metrics":
            return await self._metrics(request)
        if request.path == "/is_paused" and self.paused is not None:
            return web.json_response({"is_paused": self.paused})
        return web.json_response({"detail": "Not Found"}, status=404)

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        page = PAGE.format(running=self.running, awake=not self.asleep, asleep=int(self.asleep))
        answer = web.StreamResponse()  # chunked, as vLLM's is
        await answer.prepare(request)
        while self.mode == "noisy":
            await answer.write(b"#" * 65536)
        await answer.write(page.replace("True", "1.0").replace("False", "0.0").encode())
        await answer.write_eof()
        return answer


@contextlib.asynccontextmanager
async def started(*, key: str | None = None, unix: Path | None = None) -> AsyncIterator[FakeEngine]:
    engine = FakeEngine(key=key)
    await engine.start(unix)
    try:
        yield engine
    finally:
        await engine.stop()
