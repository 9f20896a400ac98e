"""There and back: one request to one replica, then to another one if that is safe.

Until the first byte of an answer's body has gone to the client, a lost connection or a stated
refusal is met by another replica. After it, the answer can only be ended in good form.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from starlette.types import Send

from exaslurm.router.account import Accounts
from exaslurm.router.budget import RetryBudget
from exaslurm.router.config import RouterConfig
from exaslurm.router.errors import RequestError
from exaslurm.router.events import EventStream, is_engine_error
from exaslurm.router.headers import Headers, to_client, to_engine
from exaslurm.router.table import Group, Table, Target
from exaslurm.router.upstream import Answer, ConnectFailed, ConnectionLost, Upstream

_MAX_REFUSAL_BYTES = 64 * 1024
# vLLM's words for "this process will not answer any more" inside a 500.
_DYING = (b"cannot schedule new futures after shutdown", b"EngineCore", b"EngineDeadError")


@dataclass(slots=True)
class Call:
    """One request on its way, and what became of it (``status`` 0: nothing was sent yet;
    ``stream``: the event stream that has begun)."""

    route: str
    method: str
    target: str
    headers: Headers
    body: bytes
    ident: bytes
    model: str
    started_s: float
    status: int = 0
    first_byte_s: float | None = None
    stream: EventStream | None = None


@dataclass(slots=True)
class _Refused:
    """An attempt that the client has not noticed. ``sent``: the engine may have begun."""

    reason: Literal["connect", "lost", "refused"]
    message: str
    sent: bool
    fatal: bool = False
    answer: tuple[int, Headers, bytes] | None = None


@dataclass(slots=True)
class _Attempts:
    tried: list[Target] = field(default_factory=list)
    sends: int = 0
    last: _Refused | None = None


class Forwarder:
    """Forwards calls. One for a whole router process."""

    def __init__(
        self,
        config: RouterConfig,
        table: Table,
        upstream: Upstream,
        accounts: Accounts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._table = table
        self._upstream = upstream
        self._accounts = accounts
        self._clock = clock
        self._budget = RetryBudget()

    async def forward(self, call: Call, group: Group, send: Send) -> None:
        """Answer ``call`` by a replica of ``group``; RequestError if none does."""
        self._budget.earn()
        attempts = _Attempts()
        while (target := self._next(group, attempts)) is not None:
            attempts.tried.append(target)
            refused = await self._attempt(call, target, send)
            if refused is None:
                return
            attempts.sends += refused.sent
            attempts.last = refused
            # The registry may have changed while this one was tried.
            group = self._table.group(group.name) or group
        await self._give_up(call, group, attempts, send)

    def _next(self, group: Group, attempts: _Attempts) -> Target | None:
        now_s = self._clock()
        last = attempts.last
        if last is not None:
            if len(attempts.tried) >= self._config.max_attempts:
                return None
            if attempts.sends >= self._config.max_sends:
                return None
            if last.sent and not self._budget.spend(now_s):
                return None
        target = self._table.pick(group, now_s, attempts.tried)
        if target is not None and last is not None:
            self._accounts.retries.labels(last.reason).inc()
        return target

    async def _attempt(self, call: Call, target: Target, send: Send) -> _Refused | None:
        """Try one replica. None: the client has its answer, a good or a broken one."""
        target.outstanding += 1
        judged = False
        try:
            refused, healthy = await self._exchange(call, target, send)
            judged = True
            if healthy:
                self._table.succeeded(target)
            else:
                fatal = refused is not None and refused.fatal
                self._table.failed(target, self._clock(), fatal=fatal)
            return refused
        finally:
            target.outstanding -= 1
            if not judged:
                self._table.told_nothing(target, self._clock())

    async def _exchange(
        self, call: Call, target: Target, send: Send
    ) -> tuple[_Refused | None, bool]:
        """The refusal, if it is one, and whether the replica behaved."""
        headers = to_engine(call.headers, call.ident, self._config.internal_key)
        url = target.replica.url.rstrip("/") + call.target
        try:
            answer = await self._upstream.send(call.method, url, headers, call.body)
        except ConnectFailed as error:
            return _Refused("connect", str(error), sent=False, fatal=True), False
        except ConnectionLost as error:
            return _Refused("lost", str(error), sent=True), False
        try:
            if answer.status in (401, 500, 503):
                return await self._judge_refusal(call, target, answer, send)
            if answer.content_type.startswith("text/event-stream"):
                return await self._relay_events(call, target, answer, send)
            return await self._relay_plain(call, target, answer, send)
        finally:
            answer.close()

    async def _judge_refusal(
        self, call: Call, target: Target, answer: Answer, send: Send
    ) -> tuple[_Refused | None, bool]:
        """A status that may mean "not I": busy, going down, or not the engine we think it is."""
        try:
            body = await answer.read(_MAX_REFUSAL_BYTES)
        except ConnectionLost as error:
            return _Refused("lost", str(error), sent=True), False
        dying = answer.status == 500 and any(words in body for words in _DYING)
        if answer.status == 500 and not dying:
            await self._send_whole(call, target, answer.status, answer.headers, body, send)
            return None, False
        kept = None if answer.status == 401 else (answer.status, answer.headers, body)
        message = f"it answered {answer.status}"
        fatal = dying or answer.status == 401
        return _Refused("refused", message, sent=True, fatal=fatal, answer=kept), False

    async def _relay_plain(
        self, call: Call, target: Target, answer: Answer, send: Send
    ) -> tuple[_Refused | None, bool]:
        healthy = answer.status < 500
        length = answer.content_length
        limit = self._config.max_buffered_answer_bytes
        try:
            if length is not None and length <= limit:
                body = b""
                while chunk := await answer.next_chunk():
                    body = body + chunk if body else chunk
                await self._send_whole(call, target, answer.status, answer.headers, body, send)
                return None, healthy
            first = await answer.next_chunk()
        except ConnectionLost as error:
            return _Refused("lost", str(error), sent=True), False
        await self._send_head(call, target, answer, send, stream=False)
        try:
            chunk = first
            while chunk:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                chunk = await answer.next_chunk()
        except ConnectionLost:
            # Not ending the body makes the server cut the connection: the client sees it is short.
            self._accounts.broken_streams.labels(call.model).inc()
            return None, False
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return None, healthy

    async def _relay_events(
        self, call: Call, target: Target, answer: Answer, send: Send
    ) -> tuple[_Refused | None, bool]:
        stream = EventStream(call.route)
        try:
            passed = b""
            while not passed:
                chunk = await answer.next_chunk()
                if not chunk:
                    return _Refused("lost", "its stream ended before it began", sent=True), False
                passed = stream.feed(chunk)
        except ConnectionLost as error:
            return _Refused("lost", str(error), sent=True), False
        if is_engine_error(passed):
            return _Refused("refused", "its stream began with an error", sent=True), False

        await self._send_head(call, target, answer, send, stream=True)
        call.stream = stream
        whole = False
        try:
            while True:
                if passed:
                    await send({"type": "http.response.body", "body": passed, "more_body": True})
                chunk = await answer.next_chunk()
                if not chunk:
                    break
                passed = stream.feed(chunk)
            rest, whole = stream.finish()
        except ConnectionLost:
            rest = b""
        if not whole:
            message = f"the answer was lost: replica {target.replica.id} ended before it was whole"
            rest = stream.broken(message)
            whole = not rest
        call.stream = None
        await send({"type": "http.response.body", "body": rest, "more_body": False})
        if not whole or stream.error:
            self._accounts.broken_streams.labels(call.model).inc()
        return None, whole and not stream.error

    async def _send_head(
        self, call: Call, target: Target, answer: Answer, send: Send, *, stream: bool
    ) -> None:
        call.status = answer.status
        call.first_byte_s = self._clock()
        fields = to_client(answer.headers, call.ident, target.replica.id, stream=stream)
        await send({"type": "http.response.start", "status": answer.status, "headers": fields})

    async def _send_whole(
        self, call: Call, target: Target, status: int, headers: Headers, body: bytes, send: Send
    ) -> None:
        call.status = status
        call.first_byte_s = self._clock()
        fields = to_client(headers, call.ident, target.replica.id, stream=False)
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _give_up(self, call: Call, group: Group, attempts: _Attempts, send: Send) -> None:
        retry = {"Retry-After": str(self._config.retry_after_s)}
        last = attempts.last
        if last is None:
            states = sorted({target.replica.state or "not ready" for target in group.members})
            raise RequestError(
                503,
                f"no replica of {group.name!r} takes requests now "
                f"({len(group.members)} known: {', '.join(states)})",
                headers=retry,
            )
        if last.answer is not None:
            status, headers, body = last.answer
            await self._send_whole(call, attempts.tried[-1], status, headers, body, send)
            return
        names = ", ".join(target.replica.id for target in attempts.tried)
        raise RequestError(
            502 if last.sent else 503,
            f"no replica of {group.name!r} answered (tried {names}; the last one: {last.message})",
            headers=retry,
        )
