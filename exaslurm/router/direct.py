"""Direct mode: the address of a replica and a token for it, instead of an answer.

A bulk client inside the cluster asks once, and then talks to the engine itself until the token
ends. No router stands between any more, so nothing of what a router does per request is done:
no retry, no queue, no limits; the audit log has the grant only. That is why keys with limits get
none.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from exaslurm.keys.clients import KeyInfo
from exaslurm.keys.token import MOST_S, Claims, TokenSigner
from exaslurm.router.audit import Audit
from exaslurm.router.choose import choose
from exaslurm.router.errors import RequestError
from exaslurm.router.table import Group, Table, Target

log = logging.getLogger(__name__)

PATH = "/v1/direct"
NOTE = (
    "Requests with this token go to the engine itself: the router's retries, queue, limits and "
    "audit log do not apply to them. Every request must name the model. Ask again before the end."
)
_MAX_BODY_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectSettings:
    """``max_s``: the longest life of a token in seconds (0: direct mode is off); ``usual_s``: its
    life where the client does not say."""

    max_s: float = 0.0
    usual_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 <= self.max_s <= MOST_S:
            raise ValueError(f"a token lives for at most {MOST_S:g} s (got {self.max_s:g})")


class Grantor(Protocol):
    """What this asks of a router."""

    @property
    def wall_s(self) -> float:
        """The time (Unix seconds)."""

    @property
    def table(self) -> Table:
        """Its replicas."""

    def authenticate(self, fields: Mapping[bytes, bytes]) -> KeyInfo:
        """Whose key the header fields show; RequestError."""

    def find_group(self, model: str | None, key: KeyInfo) -> Group:
        """The replicas that a model means; RequestError."""

    def no_answer(self, group: Group, tried: list[str], last: str, *, sent: bool) -> RequestError:
        """Why there is no replica."""


def direct_routes(
    router: Grantor,
    settings: DirectSettings,
    internal_key: str | None,
    rng: random.Random | None = None,
    *,
    audit: Audit | None = None,
) -> list[Route]:
    """The route ``POST /v1/direct``; none if direct mode is off. ``internal_key`` is the engines'
    key, where a replica has none of its own. ``audit`` gets a record of every grant."""
    if settings.max_s <= 0:
        return []
    direct = _Direct(router, settings, internal_key, rng or random.Random(), audit)
    return [Route(PATH, direct.grant, methods=["POST"])]


class _Direct:
    def __init__(
        self,
        router: Grantor,
        settings: DirectSettings,
        internal_key: str | None,
        rng: random.Random,
        audit: Audit | None,
    ) -> None:
        self._router = router
        self._settings = settings
        self._internal_key = internal_key
        self._rng = rng
        self._audit = audit
        self._signers: dict[str, TokenSigner] = {}

    async def grant(self, request: Request) -> Response:
        """``{"model"?, "seconds"?}`` -> ``{"url", "token", "expires_at", "model", "replica"}``."""
        key = self._router.authenticate(dict(request.scope["headers"]))
        if key.requests_per_min or key.tokens_per_min or key.concurrency:
            message = (
                f"the key {key.name!r} has limits, which an engine does not count: "
                "send its requests to the router"
            )
            raise RequestError(403, message, cause="direct")
        wish = await _wish(request)
        seconds = self._seconds(wish.get("seconds"))
        group = self._router.find_group(_model(wish.get("model")), key)
        target, engine_key = self._pick(group, key)
        replica = target.replica
        now_s = self._router.wall_s
        end_s = (
            now_s + seconds if key.expires_at_s is None else min(now_s + seconds, key.expires_at_s)
        )
        model = replica.engine_model or group.name
        claims = Claims(
            key_name=key.name, replica=replica.id, models=(model,), expires_at_s=math.ceil(end_s)
        )
        token = self._signer(engine_key).sign(claims)
        _lease(target, end_s - now_s)
        log.info("key %s: direct to %s for %.0f s", key.name, replica.id, end_s - now_s)
        if self._audit is not None:
            self._audit.granted(
                key, model=group.name, replica=replica.id, expires_at_s=claims.expires_at_s
            )
        answer = {
            "url": replica.url,
            "token": token,
            "expires_at": claims.expires_at_s,
            "model": model,
            "replica": replica.id,
            "note": NOTE,
        }
        return JSONResponse(answer, headers={"Cache-Control": "no-store"})

    def _seconds(self, wanted: Any) -> float:
        most_s = self._settings.max_s
        if wanted is None:
            return min(self._settings.usual_s, most_s)
        if isinstance(wanted, bool) or not isinstance(wanted, int | float) or not wanted >= 1:
            raise RequestError(400, "'seconds' must be a number from 1 on", param="seconds")
        if wanted > most_s:
            message = f"'seconds' must be at most {most_s:g} here"
            raise RequestError(400, message, param="seconds")
        return float(wanted)

    def _pick(self, group: Group, key: KeyInfo) -> tuple[Target, str]:
        """A replica that others can reach, and the key of its engine. The versions of a model have
        their shares here, too."""
        lanes = group.lanes
        if len(lanes) > 1:
            first = self._router.table.lane_of(group, key.name)
            lanes = sorted(lanes, key=lambda lane: lane is not first)
        for lane in lanes:
            closed = {
                target: engine_key
                for target in lane.closed
                if (engine_key := target.replica.key or self._internal_key)
                and target.replica.url.startswith("http://")
            }
            picked = choose(list(closed), (), self._rng)
            if picked is not None:
                return picked, closed[picked]
        if group.usable:
            message = f"no replica of {group.name!r} can be called directly now"
            raise RequestError(503, message, headers={"Retry-After": "5"}, cause="direct")
        raise self._router.no_answer(group, [], "", sent=False)

    def _signer(self, key: str) -> TokenSigner:
        signer = self._signers.get(key)
        if signer is None:
            signer = self._signers[key] = TokenSigner(key)
        return signer


async def _wish(request: Request) -> dict[str, Any]:
    raw = b""
    try:
        async for part in request.stream():
            raw += part
            if len(raw) > _MAX_BODY_BYTES:
                raise RequestError(413, f"the body is larger than {_MAX_BODY_BYTES} bytes")
    except ClientDisconnect:  # nobody reads this, and it is nothing for the log
        raise RequestError(400, "the body is not whole") from None
    if not raw.strip():
        return {}
    try:
        wish = json.loads(raw)
    except (ValueError, RecursionError):
        raise RequestError(400, "the body is not JSON") from None
    if not isinstance(wish, dict):
        raise RequestError(400, "the body must be an object")
    unknown = sorted(set(wish) - {"model", "seconds"})
    if unknown:
        message = f"unknown field {unknown[0][:200]!r}; known: model, seconds"
        raise RequestError(400, message, param=unknown[0][:200])
    return wish


def _model(given: Any) -> str | None:
    if given is not None and not (isinstance(given, str) and given):
        raise RequestError(400, "'model' must be a text", param="model")
    return given


def _lease(target: Target, seconds: float) -> None:
    """Count the client as one request at this replica until its token ends, so that other requests
    rather go elsewhere. How much it really asks for, the engine's own figures tell."""
    target.outstanding += 1

    def end() -> None:
        target.outstanding -= 1

    asyncio.get_running_loop().call_later(seconds, end)
