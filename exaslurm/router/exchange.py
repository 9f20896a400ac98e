"""One request, from its head to the end of its answer.

There is no task and no timer of its own: the client's connection, the engine's connection, the
admission and the router's sweep call it, and it does what is next. Until the first byte of an
answer has gone to the client, a lost connection or a stated refusal is met by another replica.
After it, the answer can only be ended in good form.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from xxhash import xxh3_64_intdigest

from exaslurm.router.blocks import blocks
from exaslurm.router.call import CLIENT_LEFT, Call
from exaslurm.router.check import check, floor_tokens, output_tokens
from exaslurm.router.errors import RequestError
from exaslurm.router.events import MAX_HELD_BYTES, EventStream, cut, is_engine_error
from exaslurm.router.headers import (
    Headers,
    fields_to_engine,
    head_to_client,
    new_request_id,
    own_head,
    usable_request_id,
)
from exaslurm.router.parse import peek
from exaslurm.router.relay import Body, Events
from exaslurm.router.rewrite import replace_model
from exaslurm.router.table import Group, Lane, Target
from exaslurm.router.upstream import Connection
from exaslurm.router.usage import usage
from exaslurm.router.weights import smooth

if TYPE_CHECKING:
    from exaslurm.router.router import Router

log = logging.getLogger(__name__)

_MAX_REFUSAL_BYTES = 64 * 1024
# vLLM's words for "this process will not answer any more" inside a 500.
_DYING = (b"cannot schedule new futures after shutdown", b"EngineCore", b"EngineDeadError")
# A body that is refused is read to its end up to here, so that the client can read the answer.
MAX_WASTED_BYTES = 64 * 1024

READING, WAITING, SENT, HOLDING, PASSING, OVER = range(6)
_AWAITED = frozenset((SENT, HOLDING))


class Client(Protocol):
    """The client's connection, as a request sees it."""

    paused: bool

    def write(self, data: bytes) -> None: ...

    def over(self, exchange: Exchange) -> None:
        """The answer is complete."""

    def cut(self) -> None:
        """End the connection in the middle of an answer."""


class _Refusal(NamedTuple):
    """An attempt that the client has not noticed. ``sent``: the engine may have begun."""

    reason: str
    message: str
    sent: bool
    answer: tuple[int, Headers, bytes] | None = None


class Exchange(Call):
    """A request and its answer. ``state`` says what it waits for."""

    __slots__ = (
        "_any_origin",
        "_attempts",
        "_body",
        "_client",
        "_entered",
        "_fields",
        "_forwarded",
        "_group",
        "_handle",
        "_headers",
        "_held",
        "_keys",
        "_lane",
        "_last",
        "_parts",
        "_pinned",
        "_relay",
        "_router",
        "_sends",
        "_target",
        "_tokens",
        "_tried",
        "_url",
        "chunks",
        "keep_alive",
        "moved_s",
        "refusal",
        "request_complete",
        "response_complete",
        "sent_s",
        "state",
    )

    def __init__(
        self,
        router: Router,
        client: Client,
        route: str,
        url: bytes,
        headers: Headers,
        *,
        keep_alive: bool,
        chunks: bool,
    ) -> None:
        """The head has arrived. ``headers``: names in lower case; ``chunks``: the client reads
        them (HTTP/1.1)."""
        fields = dict(headers)
        given = fields.get(b"x-request-id")
        ident = given if given is not None and usable_request_id(given) else new_request_id()
        super().__init__(route, ident, time.monotonic())
        self.state = READING
        self.keep_alive = keep_alive
        self.chunks = chunks
        self.request_complete = False
        self.response_complete = False
        self.refusal: RequestError | None = None
        self.moved_s = self.sent_s = self.started_s
        self._router = router
        self._client = client
        self._url = url
        self._headers = headers
        self._fields = fields
        self._any_origin = b"origin" in fields
        self._parts: list[bytes] = []
        self._body = b""
        self._entered = False
        self._group: Group | None = None
        self._lane: Lane | None = None
        self._target: Target | None = None
        self._pinned: Target | None = None
        self._tried: tuple[Target, ...] = ()
        self._keys: Sequence[int] = ()
        self._tokens = 0
        self._attempts = 0
        self._sends = 0
        self._last: _Refusal | None = None
        self._handle: Any = None
        self._held = b""
        self._relay: Events | Body | None = None
        self._forwarded = b""
        router.began(self)
        try:
            self.key = router.authenticate(fields)
            router.check_length(fields.get(b"content-length"))
        except RequestError as error:
            self.refusal = error

    # The client's side.

    @property
    def priority(self) -> int:
        assert self.key is not None
        return self.key.priority

    def part(self, piece: bytes) -> None:
        """A piece of the request's body."""
        self.bytes_in += len(piece)
        if self.refusal is not None:
            return
        self._parts.append(piece)
        if self.bytes_in > self._router.config.max_body_bytes:
            self._parts.clear()
            self.refusal = self._router.too_large()

    def start(self) -> None:
        """The request is complete, and it is its turn."""
        if self.refusal is not None:
            self.refuse(self.refusal)
            return
        try:
            self._route()
        except RequestError as error:
            self.refuse(error)
        except Exception:
            log.exception("request %s", self.ident.decode())
            self.refuse(RequestError(500, "the router failed; its log says why", cause="bug"))

    def client_left(self) -> None:
        """The client's connection is gone: the engine need not go on."""
        if self.state == OVER:
            return
        self.status = CLIENT_LEFT
        self.cause = "client_left"
        self._let_go()
        self._end()

    def client_reads(self, reads: bool) -> None:
        """The client has fallen behind, or caught up again."""
        handle = self._handle
        if self.state == PASSING and isinstance(handle, Connection) and not handle.done:
            if reads:
                self.moved_s = self._router.now_s
                handle.transport.resume_reading()
            else:
                handle.transport.pause_reading()

    # What to do with it.

    def _route(self) -> None:
        router = self._router
        fields = self._fields
        parts = self._parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        self._parts = []
        key = self.key
        assert key is not None
        seen = peek(self.route, fields.get(b"content-type", b""), body)
        group = router.find_group(seen.model, key)
        self.model = group.name
        self.stream = seen.stream
        self._group = group
        self._body = body
        if seen.data is not None:
            if router.config.check:
                check(self.route, seen.data, group.longest)
            if len(body) > router.config.long_body_bytes:
                self._tokens = floor_tokens(self.route, seen.data) + (output_tokens(seen.data) or 0)
        if router.by_prefix:
            session = fields.get(b"x-session-id")
            if session is not None:
                self._keys = (xxh3_64_intdigest(session),)
            elif seen.prompt_at:
                self._keys = blocks(body, seen.prompt_at)
        if b"x-exaslurm-replica" in fields:
            self._pinned = router.find_replica(fields[b"x-exaslurm-replica"], group)
        tokens = 0
        if key.tokens_per_min and seen.data is not None:
            tokens = floor_tokens(self.route, seen.data) + (output_tokens(seen.data) or 0)
        self.state = WAITING
        self._entered = True
        try:
            admitted = router.admission.enter(self, tokens, group.usable_count)
        except RequestError:
            self._entered = False
            raise
        if admitted:
            self.admitted()

    def admitted(self) -> None:
        """It may go to an engine now."""
        self._forwarded = fields_to_engine(self._headers, self.ident, len(self._body))
        self._router.budget.earn()
        self._attempt()

    def refused(self, error: RequestError) -> None:
        """It waited in vain."""
        self.refuse(error)

    def _attempt(self) -> None:
        """Send it to the next replica, or give up."""
        router = self._router
        group = self._group
        assert group is not None
        last = self._last
        now_s = time.monotonic()
        if last is not None:
            if not self._may_retry(last, now_s):
                self._give_up()
                return
            # The registry may have changed while the last one was tried.
            group = self._group = router.table.group(group.name) or group
        if self._pinned is not None:
            found = None if self._tried else (self._pinned, self._pinned.lanes[0])
        else:
            assert self.key is not None
            found = router.table.pick(
                group,
                now_s,
                self._tried,
                key_name=self.key.name,
                keys=self._keys,
                tokens=self._tokens,
            )
        if found is None:
            self._give_up()
            return
        target, lane = found
        if last is not None:
            self.retries += 1
            router.metrics.retried(last.reason)
        if self._keys and lane.affinity is not None:
            lane.affinity.sent(self._keys, target)
        self._tried = (*self._tried, target)
        self._target = target
        self._lane = lane
        self.replica = target.replica.id
        self.version = lane.version
        target.outstanding += 1
        self.state = SENT
        self.sent_s = self.moved_s = now_s
        self._send(target)

    def _send(self, target: Target) -> None:
        endpoint = target.endpoint
        body, rest = self._body, self._forwarded
        name = target.replica.engine_model
        if name and name != self.model:
            body = replace_model(body, name)
            rest = fields_to_engine(self._headers, self.ident, len(body))
        head = b"POST %b%b HTTP/1.1\r\nhost: %b\r\n%b%b" % (
            endpoint.prefix,
            self._url,
            endpoint.host,
            endpoint.auth,
            rest,
        )
        self._handle = self._router.upstream.send(self, endpoint, head, body)

    def _may_retry(self, last: _Refusal, now_s: float) -> bool:
        config = self._router.config
        if len(self._tried) >= config.max_attempts or self._sends >= config.max_sends:
            return False
        return not last.sent or self._router.budget.spend(now_s)

    # The engine's side.

    def received(self, connection: Connection, data: bytes) -> None:
        """Something of the answer arrived."""
        self.moved_s = self._router.now_s
        state = self.state
        if state == PASSING:
            relay = self._relay
            assert relay is not None
            relay.feed(connection, data)
            if connection.done:
                self._passed(connection, relay)
            elif self._client.paused:
                connection.transport.pause_reading()
        elif state == SENT:
            if connection.head_done:
                self._handle = connection
                self._held = connection.body()
                self._judge(connection, data)
        elif state == HOLDING:
            pieces = connection.pieces
            if pieces:
                self._held += connection.body()
            self._judge(connection, data)

    def lost(self, connection: Connection | None, reason: str, *, connected: bool) -> None:
        """The connection ended, or never began, before the answer was whole."""
        if self.state == OVER:
            return
        if self.state != PASSING:
            kind = "lost" if connected else "connect"
            self._refuse_attempt(_Refusal(kind, reason, sent=connected), fatal=not connected)
            return
        relay = self._relay
        assert relay is not None and self._target is not None
        self.broken = True
        self.cause = "engine_lost"
        told = relay.broken(
            f"the answer was lost: replica {self.replica} ended before it was whole ({reason})"
        )
        self._judged(healthy=False)
        if told:
            self._complete()
        else:
            self._end()
            self._client.cut()

    def _judge(self, connection: Connection, data: bytes) -> None:
        """The head is there, and ``_held`` of the body: pass it on, refuse it, or wait for more."""
        status = connection.status
        done = connection.done
        if status in (401, 500, 503):
            if done or len(self._held) >= _MAX_REFUSAL_BYTES:
                self._judge_refusal(connection)
                return
        elif connection.events:
            if self._judge_events(connection, data):
                return
        elif done:
            self._pass_whole(connection)
            return
        elif (connection.length or 0) > self._router.config.max_buffered_answer_bytes or (
            len(self._held) > self._router.config.max_buffered_answer_bytes
        ):
            self._pass_body(connection)
            return
        self.state = HOLDING

    def _judge_refusal(self, connection: Connection) -> None:
        """A status that may mean "not I": busy, going down, or not the engine we think it is."""
        status, body = connection.status, self._held
        dying = status == 500 and any(words in body for words in _DYING)
        if status == 500 and not dying:
            self._pass_whole(connection)
            return
        kept = None if status == 401 else (status, connection.headers, body)
        refusal = _Refusal("refused", f"it answered {status}", sent=True, answer=kept)
        self._close_or_keep(connection)
        self._refuse_attempt(refusal, fatal=dying or status == 401)

    def _judge_events(self, connection: Connection, data: bytes) -> bool:
        """Whether the fate of an event stream is decided: its first event is there."""
        held = self._held
        end = cut(held)
        if end == 0 and not connection.done and len(held) <= MAX_HELD_BYTES:
            return False
        if not held:
            self._close_or_keep(connection)
            refusal = _Refusal("lost", "its stream ended before it began", sent=True)
            self._refuse_attempt(refusal, fatal=False)
            return True
        if is_engine_error(held):
            self._close_or_keep(connection, drop=True)
            refusal = _Refusal("refused", "its stream began with an error", sent=True)
            self._refuse_attempt(refusal, fatal=False)
            return True
        self._begin(connection)
        relay = Events(EventStream(self.route), self._write, chunks=self.chunks)
        self._relay = relay
        framing = b"transfer-encoding: chunked\r\n" if self.chunks else b""
        self.stream = True
        if not self.chunks:
            self.keep_alive = False
        relay.begin(self._head(connection, framing, events=True), held, connection, data)
        self._after_begin(connection, relay)
        return True

    def _pass_body(self, connection: Connection) -> None:
        """A long body passes as it comes."""
        self._begin(connection)
        length = connection.length
        chunks = length is None and self.chunks
        if length is not None:
            framing = b"content-length: %d\r\n" % length
        elif chunks:
            framing = b"transfer-encoding: chunked\r\n"
        else:
            framing = b""
            self.keep_alive = False
        relay = Body(self._write, chunks=chunks, healthy=connection.status < 500)
        self._relay = relay
        relay.begin(self._head(connection, framing), self._held, connection)
        self._after_begin(connection, relay)

    def _begin(self, connection: Connection) -> None:
        self.state = PASSING
        self.status = connection.status
        self.first_byte_s = time.monotonic()
        self._body = self._forwarded = b""

    def _after_begin(self, connection: Connection, relay: Events | Body) -> None:
        self._held = b""
        if connection.done:
            self._passed(connection, relay)
        elif self._client.paused:
            connection.transport.pause_reading()

    def _passed(self, connection: Connection, relay: Events | Body) -> None:
        """The whole answer has passed."""
        if isinstance(relay, Events):
            stream = relay.stream
            self.prompt_tokens, self.completion_tokens = usage(b"".join(stream.last))
            if not relay.healthy:
                self.broken = True
                self.cause = "engine_error" if stream.error else "engine_lost"
        self._judged(healthy=relay.healthy)
        connection.give_back(self._router.now_s)
        self._handle = None
        self._complete()

    def _pass_whole(self, connection: Connection) -> None:
        """The usual plain answer: it is all there."""
        body = self._held
        status = self.status = connection.status
        self.first_byte_s = time.monotonic()
        framing = b"content-length: %d\r\n" % len(body)
        self._write(self._head(connection, framing) + body)
        if status == 200:
            self.prompt_tokens, self.completion_tokens = usage(body)
        self._judged(healthy=status < 500)
        connection.give_back(self._router.now_s)
        self._handle = None
        self._complete()

    def _head(self, connection: Connection, framing: bytes, *, events: bool = False) -> bytes:
        assert self._target is not None
        if not self.keep_alive:
            framing += b"connection: close\r\n"
        if not connection.dated:
            framing += self._router.date_line
        return head_to_client(
            connection.status,
            connection.headers,
            self.ident,
            self._target.label,
            framing,
            events=events,
            any_origin=self._any_origin,
        )

    # Ends.

    def _refuse_attempt(self, refusal: _Refusal, *, fatal: bool) -> None:
        """This replica did not do it: the next one."""
        self._judged(healthy=False, fatal=fatal)
        self._sends += refusal.sent
        self._last = refusal
        self._held = b""
        self._handle = None
        self.state = WAITING
        self._attempt()

    def _close_or_keep(self, connection: Connection, *, drop: bool = False) -> None:
        self._handle = None
        if connection.done and not drop:
            connection.give_back(self._router.now_s)
        else:
            connection.drop()

    def _give_up(self) -> None:
        router = self._router
        group = self._group
        last = self._last
        assert group is not None
        self.cause = last.reason if last is not None else "no_replica"
        if last is not None and last.answer is not None:
            status, headers, body = last.answer
            self.status = status
            framing = b"content-length: %d\r\n" % len(body)
            if not self.keep_alive:
                framing += b"connection: close\r\n"
            self._write(
                head_to_client(
                    status,
                    headers,
                    self.ident,
                    self._tried[-1].label,
                    framing,
                    any_origin=self._any_origin,
                )
                + body
            )
            self._complete()
            return
        tried = [target.replica.id for target in self._tried]
        self.refuse(router.no_answer(group, tried, last and last.message, sent=bool(self._sends)))

    def refuse(self, error: RequestError) -> None:
        """Answer with an error of the router's own."""
        if self.state in _AWAITED:
            self._let_go()
        self.status = error.status
        self.cause = self.cause or error.cause or "refused"
        body = error.body()
        extra = dict(error.headers)
        if not self.request_complete:
            self.keep_alive = False
        if not self.keep_alive:
            extra["connection"] = "close"
        head = own_head(
            error.status,
            len(body),
            self.ident,
            extra,
            self._router.date_line,
            any_origin=self._any_origin,
        )
        self._write(head + body)
        self._complete()

    def cut_off(self, message: str) -> None:
        """The router ends: so does this, in good form where there is one."""
        if self.state == OVER:
            return
        self.cause = "router_stopped"
        self.keep_alive = False
        if self.state != PASSING:
            self.refuse(self._router.stopping(message))
            return
        relay = self._relay
        assert relay is not None
        self.broken = True
        told = relay.broken(message)
        self._let_go()
        if told:
            self._complete()
        else:
            self._end()
            self._client.cut()

    @property
    def client_paused(self) -> bool:
        """Whether it waits for the client to read."""
        return self._client.paused

    def client_stalled(self) -> None:
        """The client does not read what it asked for."""
        self.client_left()
        self._client.cut()

    def upload_stalled(self) -> None:
        """The client does not send what it announced."""
        self.refusal = None
        message = "the body of the request did not arrive in time"
        self.refuse(RequestError(408, message, cause="slow_upload"))

    def timed_out(self, message: str, *, healthy: bool) -> None:
        """Nothing has moved for too long."""
        self.cause = "timeout"
        if self.state == PASSING:
            relay = self._relay
            assert relay is not None
            self.broken = True
            told = relay.broken(message)
            self._drop_handle()
            self._judged(healthy=healthy)
            if told:
                self._complete()
                return
            self._end()
            self._client.cut()
            return
        self._drop_handle()
        if self._target is not None:
            self._judged(healthy=healthy)
        self.refuse(RequestError(504, message, cause="timeout"))

    def _write(self, data: bytes) -> None:
        self.bytes_out += len(data)
        self._client.write(data)

    def _judged(self, *, healthy: bool, fatal: bool = False) -> None:
        """What this attempt says of its replica."""
        target = self._target
        if target is None:
            return
        self._target = None
        target.outstanding -= 1
        table = self._router.table
        if healthy:
            table.succeeded(target)
            if self.first_byte_s is not None:
                target.latency_s = smooth(target.latency_s, self.first_byte_s - self.sent_s)
        else:
            table.failed(target, time.monotonic(), fatal=fatal)

    def _let_go(self) -> None:
        """End the attempt without a judgement."""
        self._drop_handle()
        target = self._target
        if target is not None:
            self._target = None
            target.outstanding -= 1
            self._router.table.told_nothing(target, time.monotonic())

    def _drop_handle(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.drop()

    def _complete(self) -> None:
        """The client has its answer."""
        self.response_complete = True
        self._end()
        self._client.over(self)

    def _end(self) -> None:
        self.state = OVER
        self.ended_s = time.monotonic()
        if self._entered:
            self._entered = False
            used = None
            if self.completion_tokens is not None:
                used = (self.prompt_tokens or 0) + self.completion_tokens
            self._router.admission.leave(self, used)
        self._body = self._forwarded = self._held = b""
        self._router.ended(self)
