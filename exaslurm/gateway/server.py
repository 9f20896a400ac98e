"""uvicorn's server with sockets of both kinds, and an end that no client notices."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette

from exaslurm.gateway.listeners import BACKLOG, Listeners
from exaslurm.router.protocol import protocol_factory

# Longer than clients keep idle connections, so that none is closed as it is used again.
_KEEP_ALIVE_S = 75
# With a successor there is no hurry: the longest answer that anybody waits for.
_LEAVE_S = 3600.0
_PAUSE_S = 0.02


class Server(uvicorn.Server):
    """Serves an application on sockets that are listening already.

    ``on_ready`` is awaited as soon as it takes connections. ``succeeded`` is to be set before the
    end if another process takes connections from now on. Signals are handled elsewhere.
    """

    def __init__(
        self,
        app: Starlette,
        listeners: Listeners,
        *,
        tls: ssl.SSLContext | None,
        drain_s: float,
        on_ready: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="none",
                http=protocol_factory(app),  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=max(1, int(drain_s)),
            )
        )
        self.succeeded = False
        self._drain_s = drain_s
        self._leave_by_s = float("inf")
        self._listeners = listeners
        self._tls = tls
        self._on_ready = on_ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002
        """Listen. uvicorn's own would have TLS on every socket or on none."""
        await self.lifespan.startup()
        loop = asyncio.get_running_loop()

        def protocol() -> Any:
            return self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
                _loop=loop,
            )

        self.servers = [
            await loop.create_server(protocol, sock=sock, ssl=self._tls, backlog=BACKLOG)
            for sock in self._listeners.tcp
        ]
        if self._listeners.unix is not None:
            self.servers.append(
                await loop.create_unix_server(protocol, sock=self._listeners.unix, backlog=BACKLOG)
            )
        self.started = True
        await self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, finish the requests at hand. With a successor, clients are
        told at their next request that the connection ends; else idle ones are closed at once."""
        for server in self.servers:
            server.close()
        if self.succeeded:
            await self._let_clients_go()
        await super().shutdown(sockets)

    def hurry(self) -> None:
        """From now on requests have the usual drain time only, successor or not."""
        self._leave_by_s = min(self._leave_by_s, time.monotonic() + self._drain_s)

    def _is_over(self) -> bool:
        return self.force_exit or time.monotonic() >= self._leave_by_s

    async def _let_clients_go(self) -> None:
        connections: set[Any] = self.server_state.connections
        for connection in list(connections):
            connection.leave()
        self._leave_by_s = min(self._leave_by_s, time.monotonic() + _LEAVE_S)
        # As uvicorn does: a set says nothing when it becomes empty.
        while connections and not self._is_over():  # noqa: ASYNC110
            await asyncio.sleep(_PAUSE_S)
        # That was the time for all of it.
        self.config.timeout_graceful_shutdown = 1
