"""The engine's side of one request: what becomes of an attempt, and of the answer.

Until the first byte of an answer has gone to the client, a lost connection or a stated refusal can
be met by another replica. After it, the answer can only be ended in good form.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from exaslurm.router.call import Call
from exaslurm.router.errors import RequestError
from exaslurm.router.events import MAX_HELD_BYTES, EventStream, cut, is_engine_error
from exaslurm.router.headers import (
    ANY_ORIGIN,
    EVENTS_PASS_AT_ONCE,
    NO_CACHE,
    new_request_id,
)
from exaslurm.router.heads import AnswerHead, RequestHead
from exaslurm.router.hedge import Hedge
from exaslurm.router.relay import Body, Events
from exaslurm.router.table import Target
from exaslurm.router.upstream import Connection, Loss, Request
from exaslurm.router.usage import usage
from exaslurm.router.weights import smooth

if TYPE_CHECKING:
    from exaslurm.router.exchange import Exchange
    from exaslurm.router.router import Router

_MAX_REFUSAL_BYTES: Final = 64 * 1024
_STALE_S: Final = 1.0
_CHUNKED: Final = b"transfer-encoding: chunked\r\n"
# vLLM's words for "this process will not answer any more" inside a 500.
_DYING: Final = (b"cannot schedule new futures after shutdown", b"EngineCore", b"EngineDeadError")

READING: Final = 0
WAITING: Final = 1
SENT: Final = 2
HOLDING: Final = 3
PASSING: Final = 4
OVER: Final = 5
"""What a request waits for: the rest of itself; its turn; the head of an answer; enough of the
answer to judge it; the rest of the answer; nothing any more."""


class Client(Protocol):
    """The client's connection, as a request sees it. ``paused``: it does not read."""

    paused: bool
    transport: asyncio.Transport

    def over(self, exchange: Exchange) -> None:
        """The answer is complete."""

    def attends(self, exchange: Exchange) -> bool:
        """Whether it is the turn of this request, so that it may be answered."""

    def cut(self) -> None:
        """End the connection in the middle of an answer."""


class Refusal(NamedTuple):
    """An attempt that the client has not noticed. ``sent``: the engine may have begun. ``stale``:
    the connection may have been closing already, which says nothing of the replica."""

    reason: str
    message: str
    sent: bool
    answer: tuple[AnswerHead, bytes] | None = None
    stale: bool = False


class Answering(Call, ABC):
    """A request at a replica. ``moved_s``: when something of it was last heard; ``sent_s``: when
    this attempt began (both monotonic); ``events``: of a stream so far, where they are counted."""

    __slots__ = (
        "_body",
        "_client",
        "_handle",
        "_hedge",
        "_held",
        "_relay",
        "_router",
        "_target",
        "_transport",
        "events",
        "head",
        "keep_alive",
        "moved_s",
        "sent_s",
        "state",
    )

    def __init__(self, router: Router, client: Client, head: RequestHead) -> None:
        super().__init__(head.route, head.ident or new_request_id(), time.monotonic())
        self.head = head
        self.state = READING
        self.keep_alive = head.keep_alive
        self.moved_s = self.sent_s = self.started_s
        self._router = router
        self._client = client
        self._transport = client.transport
        self._target: Target | None = None
        self._handle: Request | None = None
        self._hedge: Hedge | None = None
        self._relay: Events | Body | None = None
        self._held = b""
        self._body = b""
        self.events = 0

    @abstractmethod
    def _is_next(self) -> bool:
        """Whether it is this request's turn to be answered."""

    @abstractmethod
    def refuse(self, error: RequestError) -> None:
        """Answer with an error of the router's own."""

    @abstractmethod
    def _try_another(self, refusal: Refusal) -> None:
        """This replica did not do it: the next one."""

    @abstractmethod
    def _complete(self) -> None:
        """The client has its answer."""

    @abstractmethod
    def _end(self) -> None:
        """Nothing more happens to this request."""

    # What the engine's connection calls.

    def answered(self, connection: Connection, head: AnswerHead, body: bytes) -> bool:
        """A whole answer has arrived at once: the usual one is passed on and done with."""
        if self.state != SENT or head.status != 200 or head.events or self._hedge is not None:
            return False
        self._pass_whole(connection, head, body)
        return True

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
            head = connection.head
            if head is not None:
                self._handle = connection
                self._held = connection.body()
                self._judge(connection, head)
        elif state == HOLDING:
            if connection.pieces:
                self._held += connection.body()
            assert connection.head is not None
            self._judge(connection, connection.head)

    def lost(self, reason: str, loss: Loss) -> None:
        """The connection ended, or never began, before the answer was whole."""
        if self.state == OVER:
            return
        self._handle = None
        if self.state == PASSING:
            self.cause = "engine_lost"
            reason = f"replica {self.replica} ended before it was whole ({reason})"
            self._break(f"the answer was lost: {reason}", healthy=False)
        elif loss is Loss.OURS:
            self._let_go()
            self.refuse(self._router.out_of_means(reason))
        else:
            # The end of an idle connection comes at once; later, the engine has died of something.
            stale = loss is Loss.STALE and time.monotonic() - self.sent_s < _STALE_S
            sent = loss is Loss.STALE or loss is Loss.ENDED
            refusal = Refusal("lost" if sent else "connect", reason, sent=sent, stale=stale)
            self._refuse_attempt(refusal, fatal=loss is Loss.REFUSED)

    # What time and the client do to it.

    @property
    def client_paused(self) -> bool:
        """Whether it waits for the client to read."""
        return self._client.paused

    def client_reads(self, reads: bool) -> None:
        """The client has fallen behind, or caught up again."""
        handle = self._handle
        if self.state == PASSING and isinstance(handle, Connection) and not handle.done:
            if reads:
                self.moved_s = self._router.now_s
                handle.transport.resume_reading()
            else:
                handle.transport.pause_reading()

    def timed_out(self, message: str) -> None:
        """The engine has not said anything for too long."""
        self.cause = "timeout"
        self._drop_handle()
        if self.state == PASSING:
            self._break(message, healthy=False)
        else:
            self._judged(healthy=False)
            self.refuse(RequestError(504, message, cause="timeout"))

    def cut_off(self, error: RequestError) -> None:
        """The router ends: so does this, in good form where there is one."""
        if self.state == OVER:
            return
        self.cause = "router_stopped"
        self.keep_alive = False
        self._let_go()
        if self.state == PASSING:
            self._break(error.message, healthy=None)
        elif self._is_next():
            self.refuse(error)
        else:
            self.status = error.status
            self._end()

    def _break(self, message: str, *, healthy: bool | None) -> None:
        """The rest of an answer that has begun is lost. ``healthy`` None: that says nothing."""
        relay = self._relay
        assert relay is not None
        self.broken = True
        told = relay.broken(message)
        if healthy is not None:
            self._judged(healthy=healthy)
        if told:
            self._complete()
        else:
            self._end()
            self._client.cut()

    # What an answer is.

    def _judge(self, connection: Connection, head: AnswerHead) -> None:
        """The head is there, and ``_held`` of the body: pass it on, refuse it, or wait for more."""
        done = connection.done
        longest = self._router.config.max_buffered_answer_bytes
        if head.status in (401, 500, 503):
            if done or len(self._held) >= _MAX_REFUSAL_BYTES:
                self._judge_refusal(connection, head)
                return
        elif head.events:
            if self._judge_events(connection, head):
                return
        elif done:
            self._pass_whole(connection, head, self._held)
            return
        elif head.coded or (head.length or 0) > longest or len(self._held) > longest:
            self._pass_body(connection, head)
            return
        self.state = HOLDING

    def _judge_refusal(self, connection: Connection, head: AnswerHead) -> None:
        """A status that may mean "not I": busy, going down, or not the engine we think it is."""
        status, body = head.status, self._held
        dying = status == 500 and any(words in body for words in _DYING)
        if status == 500 and not dying:
            if connection.done:
                self._pass_whole(connection, head, body)
            else:
                self._pass_body(connection, head)
            return
        # A part of it is no answer.
        kept = (head, body) if connection.done and status != 401 else None
        refusal = Refusal("refused", f"it answered {status}", sent=True, answer=kept)
        self._hand_back(connection)
        self._refuse_attempt(refusal, fatal=dying or status == 401)

    def _judge_events(self, connection: Connection, head: AnswerHead) -> bool:
        """Whether the fate of an event stream is decided: its first event is there."""
        held = self._held
        if cut(held) == 0 and not connection.done and len(held) <= MAX_HELD_BYTES:
            return False
        if not held or is_engine_error(held):
            what = "began with an error" if held else "ended before it began"
            refusal = Refusal("refused" if held else "lost", f"its stream {what}", sent=True)
            self._hand_back(connection)
            self._refuse_attempt(refusal, fatal=False)
            return True
        self._begin(head)
        chunks = self.head.chunks
        # Who may use so many tokens is counted, whether or not the engine tells how many it was.
        write = self._write_counted if self.key.tokens_per_min else self._write
        relay = Events(EventStream(self.route), write, chunks=chunks)
        self._relay = relay
        self.stream = True
        framing = EVENTS_PASS_AT_ONCE
        if not any(name == b"cache-control" for name, _ in head.headers):
            framing += NO_CACHE
        if chunks:
            framing += _CHUNKED
        else:
            self.keep_alive = False
        relay.begin(self._answer_head(head, self._at(), framing), held, connection)
        self._after_begin(connection, relay)
        return True

    def _pass_body(self, connection: Connection, head: AnswerHead) -> None:
        """A long body passes as it comes."""
        self._begin(head)
        length = head.length
        chunks = length is None and self.head.chunks
        framing = b""
        if length is not None:
            framing = b"content-length: %d\r\n" % length
        elif chunks:
            framing = _CHUNKED
        else:
            self.keep_alive = False
        relay = Body(self._write, chunks=chunks, healthy=head.status < 500)
        self._relay = relay
        relay.begin(self._answer_head(head, self._at(), framing), self._held, connection)
        self._after_begin(connection, relay)

    def _begin(self, head: AnswerHead) -> None:
        if self._hedge is not None:
            self._drop_hedge()
        target = self._target
        if target is not None and not target.clean and head.status < 500:
            self._router.table.begins_well(target)
        self.state = PASSING
        self.status = head.status
        self.first_byte_s = time.monotonic()
        self._body = b""

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
            self.prompt_tokens, self.completion_tokens = stream.usage.told
            if not relay.healthy:
                self.broken = True
                self.cause = "engine_error" if stream.error else "engine_lost"
        elif self.status == 200:
            self.prompt_tokens, self.completion_tokens = relay.usage.told
        self._judged(healthy=relay.healthy)
        self._hand_back(connection)
        self._complete()

    def _pass_whole(self, connection: Connection, head: AnswerHead, body: bytes) -> None:
        """The usual plain answer: it is all there."""
        status = self.status = head.status
        self.first_byte_s = time.monotonic()
        # RFC 9110, 8.6: there is none in an answer that cannot have a body.
        framing = b"content-length: %d\r\n" % len(body) if status != 204 else b""
        self._write(self._answer_head(head, self._at(), framing, body))
        if status == 200:
            self.prompt_tokens, self.completion_tokens = usage(body)
        self._judged(healthy=status < 500)
        self._handle = None
        connection.give_back(self._router.now_s)
        self._complete()

    def _answer_head(
        self, head: AnswerHead, target: Target, framing: bytes, body: bytes = b""
    ) -> bytes:
        """The head for the client of what ``target`` answered, and ``body``. ``framing``: fields
        that say where the body ends, each with its line's end."""
        if not self.keep_alive:
            framing += b"connection: close\r\n"
        if not head.dated:
            framing += self._router.date_line
        if self.head.is_from_page and self._router.any_origin:
            framing += ANY_ORIGIN
        return b"".join(
            (head.passed, b"x-request-id: ", self.ident, target.label, framing, b"\r\n", body)
        )

    def _at(self) -> Target:
        assert self._target is not None
        return self._target

    def _write(self, data: bytes) -> None:
        self.moved_s = self._router.now_s
        self.bytes_out += len(data)
        self._router.outbox.to_client(self._transport, data)

    def _write_counted(self, data: bytes) -> None:
        self.events += data.count(b"\n\n") or data.count(b"\n\r\n") or data.count(b"\r\r")
        self._write(data)

    # The end of an attempt.

    def _refuse_attempt(self, refusal: Refusal, *, fatal: bool) -> None:
        if refusal.stale:
            self._let_go()
        else:
            self._judged(healthy=False, fatal=fatal)
        self._held = b""
        self._handle = None
        if self._hedge is not None:
            self._adopt(self._hedge)
            return
        self.state = WAITING
        self._try_another(refusal)

    def _hedge_won(self, hedge: Hedge, connection: Connection) -> None:
        """The second replica answers first."""
        self._let_go()
        self._adopt(hedge)
        assert connection.head is not None
        self._judge(connection, connection.head)

    def _hedge_lost(self) -> None:
        self._hedge = None

    def _adopt(self, hedge: Hedge) -> None:
        """The second attempt is the only one now."""
        self._hedge = None
        self._handle = hedge.request
        self._target = hedge.target
        self.replica = hedge.target.ident
        self.version = hedge.version
        self.sent_s = hedge.sent_s
        self.state = SENT
        if hedge.connection is not None:  # the beginning of its answer is there
            self._handle = hedge.connection
            self._held = hedge.held
            self.state = HOLDING
        hedge.hand_to(self)

    def _drop_hedge(self) -> None:
        hedge, self._hedge = self._hedge, None
        if hedge is not None:
            hedge.drop()

    def _hand_back(self, connection: Connection) -> None:
        """The connection is not needed any more; it may serve others if the answer is whole."""
        self._handle = None
        if connection.done:
            connection.give_back(self._router.now_s)
        else:
            connection.drop()

    def _judged(self, *, healthy: bool, fatal: bool = False) -> None:
        """What this attempt says of its replica."""
        target = self._target
        if target is None:
            return
        self._target = None
        target.outstanding -= 1
        table = self._router.table
        if healthy:
            if not target.clean:
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
