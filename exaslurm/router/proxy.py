"""The proxied routes: who asks, for what; then the forwarder. A bare ASGI application."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from exaslurm.keys.clients import ClientKeys, KeyInfo
from exaslurm.router.account import UNKNOWN_MODEL, Accounts
from exaslurm.router.check import check
from exaslurm.router.config import RouterConfig
from exaslurm.router.errors import RequestError
from exaslurm.router.forward import Call, Forwarder
from exaslurm.router.headers import Headers, find, request_id
from exaslurm.router.parse import peek
from exaslurm.router.table import Group, Table

log = logging.getLogger(__name__)

_CLIENT_LEFT = 499
_SHOWN_CHARS = 200


class ClientGone(Exception):
    """The client closed its connection."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """Answers every proxied route."""

    config: RouterConfig
    table: Table
    keys: ClientKeys
    forwarder: Forwarder
    accounts: Accounts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: Headers = scope["headers"]
        route: str = scope["path"]
        call = Call(
            route=route,
            method=scope["method"],
            target=_target(scope),
            headers=headers,
            body=b"",
            ident=request_id(headers),
            model=UNKNOWN_MODEL,
            started_s=time.monotonic(),
        )
        try:
            await self._answer(call, receive, send)
        except RequestError as error:
            call.status = error.status
            await send_error(error, call.ident, send)
        except ClientGone:
            call.status = _CLIENT_LEFT
        except asyncio.CancelledError:
            # The router ends, and its patience with this request is over: that is all that a
            # cancellation can mean here, so it is answered instead of passed on.
            await self._cut_off(call, send)
        finally:
            now_s = time.monotonic()
            first_s = None if call.first_byte_s is None else call.first_byte_s - call.started_s
            status = call.status or _CLIENT_LEFT
            self.accounts.done(route, call.model, status, now_s - call.started_s, first_s)

    async def _answer(self, call: Call, receive: Receive, send: Send) -> None:
        key = authenticate(self.keys, call.headers)
        call.body = await self._read_body(call.headers, receive)
        seen = peek(call.route, find(call.headers, b"content-type"), call.body)
        if seen.data is not None:
            check(call.route, seen.data, None)
        group = self._find_group(seen.model, key)
        call.model = group.name
        await _unless_client_leaves(self.forwarder.forward(call, group, send), receive)

    async def _cut_off(self, call: Call, send: Send) -> None:
        message = "the router is shutting down"
        if call.status == 0:
            call.status = 503
            retry = {"Retry-After": str(self.config.retry_after_s)}
            await send_error(RequestError(503, message, headers=retry), call.ident, send)
        elif call.stream is not None:
            rest = call.stream.broken(message)
            await send({"type": "http.response.body", "body": rest, "more_body": False})

    async def _read_body(self, headers: Headers, receive: Receive) -> bytes:
        limit = self.config.max_body_bytes
        announced = find(headers, b"content-length")
        if announced.isdigit() and int(announced) > limit:
            raise _too_large(limit)
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part: bytes = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            parts.append(part)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def _find_group(self, model: str | None, key: KeyInfo) -> Group:
        if model is not None:
            group = self.table.group(model)
            if group is not None and not key.allows(model):
                raise RequestError(
                    403, f"the key {key.name!r} is not for the model {model!r}", param="model"
                )
        else:
            group = self.table.only_group()
            if group is not None and not key.allows(group.name):
                group = None
        if group is not None:
            return group
        if not self.table.names:
            raise RequestError(
                503,
                "no model is served yet",
                headers={"Retry-After": str(self.config.retry_after_s)},
            )
        known = ", ".join(filter(key.allows, self.table.names)) or "none that this key may use"
        if model is None:
            raise RequestError(
                400, f"the field 'model' is missing; served here: {known}", param="model"
            )
        shown = model if len(model) <= _SHOWN_CHARS else f"{model[:_SHOWN_CHARS]}..."
        raise RequestError(
            404, f"the model {shown!r} does not exist; served here: {known}", param="model"
        )


def authenticate(keys: ClientKeys, headers: Headers) -> KeyInfo:
    """Whose key a request shows (``Authorization: Bearer`` or ``X-Api-Key``); RequestError 401."""
    shown = find(headers, b"authorization")
    if shown:
        info = keys.check(shown)
    else:
        shown = find(headers, b"x-api-key")
        info = keys.check_key(shown)
    if info is not None:
        return info
    if not shown:
        message = "no API key: send 'Authorization: Bearer KEY'"
    else:
        message = "this API key is unknown or expired"
    if keys.empty:
        message += "; no key exists yet: make one with 'exaslurm key add'"
    raise RequestError(401, message, headers={"WWW-Authenticate": "Bearer"})


async def send_error(error: RequestError, ident: bytes, send: Send) -> None:
    """Answer with an error of the router's own."""
    body = error.body()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", ident),
        *((name.lower().encode(), value.encode()) for name, value in error.headers.items()),
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _unless_client_leaves(work: Awaitable[None], receive: Receive) -> None:
    """Do ``work``, but cancel it at once when the client goes away."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_client_left(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        working.result()
    finally:
        for task in (working, leaving):
            if not task.done():
                task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _client_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _too_large(limit: int) -> RequestError:
    return RequestError(
        413,
        f"the body is larger than {limit} bytes, the limit of this router",
        headers={"Connection": "close"},
    )


def _target(scope: Scope) -> str:
    """Path and query as they came, not decoded and encoded again."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    return (raw + b"?" + query if query else raw).decode("latin-1")
