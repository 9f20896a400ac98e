"""The controller's HTTP surface."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from exaslurm.controller.view import router_view
from exaslurm.core.cell import AgentReport
from exaslurm.core.codec import dumps, loads
from exaslurm.core.drain import DrainRequest, StopRequest
from exaslurm.core.scale import Targets
from exaslurm.errors import AllocationError, StateError

_MAX_BODY_BYTES = 16 * 1024 * 1024

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Surface:
    """Routes to what a controller can be asked."""

    def __init__(
        self,
        key: str,
        *,
        on_report: Callable[[AgentReport], Any],
        state: Callable[[], Any],
        ray: Callable[[], dict[str, Any]],
        stop: Callable[[float | None], None],
        drain: Callable[[DrainRequest], None],
        target: Callable[[Targets], None],
    ) -> None:
        self._key = key.encode()
        self._on_report = on_report
        self._state = state
        self._ray = ray
        self._stop = stop
        self._drain = drain
        self._target = target

    def app(self) -> web.Application:
        """The application; every path but ``/health`` asks for the internal key."""
        app = web.Application(middlewares=[self._guard()], client_max_size=_MAX_BODY_BYTES)
        app.router.add_get("/health", self._health)
        app.router.add_post("/v1/report", self._post_report)
        app.router.add_get("/v1/state", self._get_state)
        app.router.add_get("/v1/ray", self._get_ray)
        app.router.add_post("/v1/stop", self._post_stop)
        app.router.add_post("/v1/drain", self._post_drain)
        app.router.add_post("/v1/targets", self._post_targets)
        return app

    def _guard(self) -> Any:
        expected = b"Bearer " + self._key

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            given = request.headers.get("Authorization", "").encode("utf-8", "replace")
            if request.path != "/health" and not hmac.compare_digest(given, expected):
                return _error(401, "the internal key is missing or wrong")
            return await handler(request)

        return guard

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _post_report(self, request: web.Request) -> web.Response:
        try:
            report = loads(AgentReport, await request.read(), where="report")
        except StateError as error:
            return _error(400, str(error))
        try:
            return _json(dumps(self._on_report(report)))
        except AllocationError as error:
            return _error(409, str(error))

    async def _get_state(self, request: web.Request) -> web.Response:
        state, seen = self._state(), request.query.get("router")
        return _json(dumps(state if seen is None else router_view(state, seen)))

    async def _get_ray(self, _request: web.Request) -> web.Response:
        return _json(dumps(self._ray()))

    async def _post_stop(self, request: web.Request) -> web.Response:
        try:
            asked = loads(StopRequest, await _body(request), where="POST /v1/stop")
        except StateError as error:
            return _error(400, str(error))
        self._stop(asked.grace_s)
        return web.Response(status=204)

    async def _post_drain(self, request: web.Request) -> web.Response:
        try:
            self._drain(loads(DrainRequest, await _body(request), where="POST /v1/drain"))
        except StateError as error:
            return _error(400, str(error))
        except AllocationError as error:
            return _error(404, str(error))
        return web.Response(status=204)

    async def _post_targets(self, request: web.Request) -> web.Response:
        try:
            self._target(loads(Targets, await request.read(), where="POST /v1/targets"))
        except (StateError, AllocationError) as error:
            return _error(400, str(error))
        return web.Response(status=204)


async def _body(request: web.Request) -> bytes:
    """The body; one that is left out says nothing."""
    return await request.read() or b"{}"


def _json(text: str) -> web.Response:
    return web.Response(text=text, content_type="application/json")


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "code": status}}, status=status)
