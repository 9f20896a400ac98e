"""The guard of an engine: every path but ``/health`` asks for the deployment's internal key.

vLLM's own ``--api-key`` guards only some paths (``/tokenize``, ``/pause``, ``/metrics`` and others
stay open), so engines get this ASGI middleware as ``--middleware``. Standard library only: it is
imported into the engine's process.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

KEY_VARIABLE = "EXASLURM_ENGINE_KEY"
OPEN_PATH = "/health"

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_BODY = json.dumps(
    {
        "error": {
            "message": "This engine answers its deployment's router only.",
            "type": "authentication_error",
            "param": None,
            "code": 401,
        }
    }
).encode()


class KeyMiddleware:
    """Pass on what carries ``Authorization: Bearer <internal key>``; answer 401 otherwise.

    The key comes from the environment; without one the engine does not start.
    """

    def __init__(self, app: ASGIApp) -> None:
        key = os.environ.get(KEY_VARIABLE, "")
        if not key:
            raise RuntimeError(f"{KEY_VARIABLE} is not set: an engine must not run unguarded")
        self._app = app
        self._expected = b"Bearer " + key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry; requests and websockets are checked, ``lifespan`` is passed on."""
        if scope["type"] == "lifespan" or self._allowed(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(_BODY)).encode()),
                (b"www-authenticate", b"Bearer"),
            ]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": _BODY})

    def _allowed(self, scope: Scope) -> bool:
        if scope["type"] == "http" and scope["path"] == OPEN_PATH:
            return True
        given = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._expected)
