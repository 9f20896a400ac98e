"""The guard of an engine: every path but ``/health`` asks for the deployment's internal key.

vLLM's own ``--api-key`` guards only some paths (``/tokenize``, ``/pause``, ``/metrics`` and others
stay open), so engines get this ASGI middleware as ``--middleware``. Besides the key, clients' paths
accept a short-lived token for this replica (direct mode), and then only the models that it names.
Standard library only: it is imported into the engine's process.
"""

from __future__ import annotations

import hmac
import json
import os
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from exaslurm.keys.token import PREFIX, Claims, TokenSigner

KEY_VARIABLE = "EXASLURM_ENGINE_KEY"
REPLICA_VARIABLE = "EXASLURM_ENGINE_REPLICA"
OPEN_PATH = "/health"
# Ours: how many requests the engine is at, as its HTTP server sees it. The engine's own figures
# come from its core, and a core that hangs with its first request never tells of that.
HELD_PATH = "/exaslurm/held"

# Where a token opens. Everything else is for the router and for operators: /sleep, /pause,
# /metrics, /v1/load_lora_adapter, answers that are kept for others (/v1/responses/ID), forms, whose
# model cannot be told without parsing them (/v1/audio/...), and whatever a later vLLM adds.
TOKEN_PATHS = frozenset(
    (
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/rerank",
        "/v2/rerank",
        "/v1/score",
        "/rerank",
        "/score",
        "/classify",
        "/pooling",
        "/tokenize",
        "/detokenize",
    )
)
TOKEN_PAGES = frozenset(("/v1/models",))
_MAX_BODY_BYTES = 64 * 1024 * 1024

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_TYPES = {
    400: "BadRequestError",
    401: "authentication_error",
    403: "PermissionDeniedError",
    413: "RequestTooLargeError",
}
_NO_KEY = "This engine answers its deployment's router only."


class _Refused(Exception):
    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        self.status = status
        self.message = message
        self.param = param


class _ClientLeft(Exception):
    """Before its request was whole."""


class KeyMiddleware:
    """Pass on what carries ``Authorization: Bearer <internal key>``, or a token for this replica
    on a client's path; answer 401 otherwise.

    The key comes from the environment; without one the engine does not start. So does the name of
    the replica that tokens are for; without one no token is accepted.
    """

    def __init__(self, app: ASGIApp) -> None:
        key = os.environ.get(KEY_VARIABLE, "")
        if not key:
            raise RuntimeError(f"{KEY_VARIABLE} is not set: an engine must not run unguarded")
        self._app = app
        self._expected = b"Bearer " + key.encode()
        self._replica = os.environ.get(REPLICA_VARIABLE, "")
        self._signer = TokenSigner(key)
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry; requests and websockets are checked, ``lifespan`` is passed on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif self._allowed(scope):
            if scope["type"] == "http" and scope["path"] == HELD_PATH:
                await _answer(send, 200, {"held": self._held})
            else:
                await self._pass_on(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._with_token(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """To the engine; until its answer has been sent it holds the request."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        self._held += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._held -= 1

    def _allowed(self, scope: Scope) -> bool:
        if scope["type"] == "http" and scope["path"] == OPEN_PATH:
            return True
        return hmac.compare_digest(_authorization(scope), self._expected)

    async def _with_token(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            claims = self._claims(scope)
            body = None
            if scope["path"] in TOKEN_PATHS:
                body = await _read(receive)
                _check_model(body, claims)
        except _Refused as refusal:
            await _refuse(send, refusal)
        except _ClientLeft:
            return
        else:
            await self._pass_on(scope, receive if body is None else _replay(body, receive), send)

    def _claims(self, scope: Scope) -> Claims:
        given = _authorization(scope).decode("latin-1")
        scheme, _, token = given.partition(" ")
        if scheme.lower() != "bearer" or not token.startswith(PREFIX) or not self._replica:
            raise _Refused(401, _NO_KEY)
        path, method = scope["path"], scope["method"]
        if not (
            (method == "POST" and path in TOKEN_PATHS) or (method == "GET" and path in TOKEN_PAGES)
        ):
            raise _Refused(401, "A token opens only the paths that are for clients.")
        claims = self._signer.verify(token, replica=self._replica, now_s=time.time())
        if isinstance(claims, str):
            raise _Refused(401, f"The token is not accepted: {claims}.")
        return claims


def _authorization(scope: Scope) -> bytes:
    """The one ``Authorization`` field; nothing if there is none, or more than one."""
    given = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
    return bytes(given[0]) if len(given) == 1 else b""


async def _read(receive: Receive) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise _ClientLeft
        part = message.get("body", b"")
        size += len(part)
        if size > _MAX_BODY_BYTES:
            raise _Refused(413, f"The body is larger than {_MAX_BODY_BYTES} bytes.")
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _check_model(body: bytes, claims: Claims) -> None:
    """An engine may serve more than the token's key may use, and takes its own default where a
    request names no model. Of several fields ``model`` the last one counts, here and there."""
    try:
        model = json.loads(body)["model"]
    except (ValueError, KeyError, TypeError, RecursionError):
        model = None
    if not isinstance(model, str) or not model:
        raise _Refused(400, "With a token, a request must be JSON that names its 'model'.", "model")
    if model not in claims.models:
        names = ", ".join(claims.models)
        raise _Refused(403, f"The token is for {names}, not for {model[:200]!r}.", "model")


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body that was read once more, then whatever comes."""
    told = False

    async def again() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refuse(send: Send, refusal: _Refused) -> None:
    error = {
        "message": refusal.message,
        "type": _TYPES[refusal.status],
        "param": refusal.param,
        "code": refusal.status,
    }
    headers = []
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if refusal.status == 413:
        headers.append((b"connection", b"close"))
    await _answer(send, refusal.status, {"error": error}, headers)


async def _answer(
    send: Send, status: int, data: Any, headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    body = json.dumps(data).encode()
    every = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": every})
    await send({"type": "http.response.body", "body": body})
