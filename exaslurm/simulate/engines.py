"""Simulated engines, several in one process, that can be killed or hung one by one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from exaslurm.engines.middleware import KeyMiddleware, Receive, Scope, Send
from exaslurm.engines.simulated.app import SimulatedApp
from exaslurm.engines.simulated.options import Options

_POLL_S = 0.05
_RESET = struct.pack("ii", 1, 0)


def _reset(transport: Any) -> None:
    """End a connection as the kernel does for a process that is gone."""
    sock = transport.get_extra_info("socket")
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()


class _Connection(HttpToolsProtocol):
    """A connection to an engine; one that was only just taken when the engine was killed is reset
    like all others."""

    def __init__(self, engine: Engine, **options: Any) -> None:
        super().__init__(**options)
        self._engine = engine

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self._engine.exit is not None:
            _reset(transport)


class Engine:
    """One engine. ``ended`` is set when it has ended; ``exit`` is then its exit code."""

    def __init__(self, options: Options, load_s: float) -> None:
        self.options = options
        self.ended = asyncio.Event()
        self.exit: int | None = None
        self._app = SimulatedApp(options)
        self._guarded = KeyMiddleware(self._app)
        self._going = asyncio.Event()
        self._going.set()
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self._end: asyncio.Task[None] | None = None
        self._life = asyncio.create_task(self._listen(load_s))

    async def _listen(self, load_s: float) -> None:
        await asyncio.sleep(load_s)
        config = uvicorn.Config(
            self._serve,
            interface="asgi3",
            http="httptools",
            ws="none",
            lifespan="off",
            log_level="critical",
            access_log=False,
            timeout_keep_alive=5,
        )
        config.load()

        def protocol() -> _Connection:
            return _Connection(self, config=config, server_state=self._state, app_state={})

        host, port = self.options.host, self.options.port
        try:
            self._server = await asyncio.get_running_loop().create_server(
                protocol, host, port, backlog=512, reuse_address=True
            )
        except OSError:
            self._over(1)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._going.wait()
        await self._guarded(scope, receive, send)

    def hang(self) -> None:
        """It takes connections, and nothing more comes of them."""
        self._going.clear()
        self._app.scheduler.paused.clear()

    @property
    def is_hung(self) -> bool:
        return not self._going.is_set()

    def kill(self, code: int = -9) -> None:
        """As SIGKILL: its connections are reset."""
        if self.exit is not None:
            return
        for connection in list(self._state.connections):
            _reset(connection.transport)
        self._over(code)

    def terminate(self, timeout_s: float) -> None:
        """As SIGTERM: what runs may end in this time, new requests are refused."""
        if self._end is None and self.exit is None:
            self._app.closing = True
            self._end = asyncio.create_task(self._finish(timeout_s))

    async def _finish(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        scheduler = self._app.scheduler
        while self.exit is None and loop.time() < until_s:
            if not self.is_hung and not scheduler.running and not scheduler.waiting:
                break
            await asyncio.sleep(_POLL_S)
        scheduler.abort_all()
        await asyncio.sleep(_POLL_S)  # for the last answers to be sent
        self.kill(0)

    def _over(self, code: int) -> None:
        if self._server is not None:
            self._server.close()
        self._life.cancel()
        self._app.end()
        for task in list(self._state.tasks):
            task.cancel()
        self.exit = code
        self.ended.set()
