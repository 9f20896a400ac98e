"""The agent's own HTTP port, for the controller and ``logs``. Every path asks for the key."""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from exaslurm.agent.tail import tail
from exaslurm.core.cell import AgentReport, DesiredState
from exaslurm.core.codec import dumps, loads
from exaslurm.errors import ExaslurmError, StateError
from exaslurm.util.iothread import IoThread

_MAX_LOG_BYTES = 4 << 20
_FILE_S = 10.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*\Z")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(
    key: str,
    *,
    report: Callable[[], AgentReport],
    accept: Callable[[DesiredState], None],
    log_path: Callable[[str], Path],
    files: IoThread,
) -> web.Application:
    """``PUT /v1/desired``, ``GET /v1/report``, ``GET /v1/logs/{name}?bytes=N``."""
    expected = f"Bearer {key}".encode()

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(given, expected):
            return _problem(401, "this agent answers its own deployment only")
        return await handler(request)

    async def put_desired(request: web.Request) -> web.StreamResponse:
        try:
            accept(loads(DesiredState, await request.read(), where="PUT /v1/desired"))
        except StateError as error:
            return _problem(400, str(error))
        return web.Response(status=204)

    async def get_report(_: web.Request) -> web.StreamResponse:
        return web.Response(text=dumps(report()), content_type="application/json")

    async def get_log(request: web.Request) -> web.StreamResponse:
        name, size = request.match_info["name"], request.query.get("bytes", "65536")
        if not _NAME.match(name) or not size.isdigit():
            return _problem(400, "expected a plain name and a number of bytes")
        try:
            text = await files.run(
                tail, log_path(name), min(int(size), _MAX_LOG_BYTES), timeout_s=_FILE_S
            )
        except FileNotFoundError:
            return _problem(404, f"no log {name!r}")
        except (ExaslurmError, OSError) as error:
            return _problem(503, str(error))
        return web.Response(text=text.lstrip("\0"))  # room that was given back

    app = web.Application(middlewares=[guard], client_max_size=16 << 20)
    app.router.add_put("/v1/desired", put_desired)
    app.router.add_get("/v1/report", get_report)
    app.router.add_get("/v1/logs/{name}", get_log)
    return app


def _problem(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "code": status}}, status=status)
