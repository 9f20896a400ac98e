"""One request, from its head to the end of its answer.

There is no task and no timer of its own: the client's connection, the engine's connection, the
admission and the router's sweep call it, and it does what is next.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from xxhash import xxh3_64_intdigest

from exaslurm.router.answering import OVER, SENT, WAITING, Answering, Client, Refusal
from exaslurm.router.blocks import blocks
from exaslurm.router.call import CLIENT_LEFT
from exaslurm.router.check import check, floor_tokens, output_tokens
from exaslurm.router.errors import RequestError
from exaslurm.router.headers import own_head
from exaslurm.router.heads import RequestHead
from exaslurm.router.hedge import Hedge
from exaslurm.router.parse import peek
from exaslurm.router.relay import Body
from exaslurm.router.rewrite import replace_model
from exaslurm.router.table import Group, Target
from exaslurm.router.upstream import Receiver, Request

if TYPE_CHECKING:
    from exaslurm.router.router import Router

log = logging.getLogger(__name__)

# A body that is refused is read to its end up to here, so that the client can read the answer.
MAX_WASTED_BYTES: Final = 64 * 1024
_MANY_PARTS: Final = 4096
_BYTES_OF_TOKEN: Final = 4
_EVENTS_WITHOUT_TOKEN: Final = 3
_BYTES_OF_EVENT: Final = 400  # beside its text


class Exchange(Answering):
    """A request and its answer. ``refusal``: why it will not go to an engine; ``waits_to_go_on``:
    the client sends no body before it is told to."""

    __slots__ = (
        "_endless",
        "_entered",
        "_group",
        "_hedged",
        "_keys",
        "_last",
        "_named",
        "_parts",
        "_pinned",
        "_sends",
        "_session",
        "_sparse",
        "_tokens",
        "_tokens_asked",
        "_tried",
        "refusal",
        "request_complete",
        "response_complete",
        "waits_to_go_on",
    )

    def __init__(self, router: Router, client: Client, head: RequestHead) -> None:
        """The head has arrived."""
        super().__init__(router, client, head)
        self.request_complete = False
        self.response_complete = False
        self.refusal: RequestError | None = None
        self.waits_to_go_on = False
        self._parts: list[bytes | bytearray] | None = None
        self._entered = False
        self._group: Group | None = None
        self._named: str | None = None
        self._pinned: Target | None = None
        self._tried: tuple[Target, ...] = ()
        self._keys: Sequence[int] = ()
        self._session = 0
        self._tokens = 0
        self._tokens_asked = 0
        self._sends = 0
        self._endless = self._sparse = False
        self._hedged = False
        self._last: Refusal | None = None
        try:
            self.key = router.recognise(head)
            if head.is_back:
                raise router.circle()
            if head.fault:
                raise RequestError(400, head.fault, param="Content-Type")
        except RequestError as error:
            self.refusal = error.with_traceback(None)  # it would hold this exchange, in a circle
        router.began(self)

    # What the client's connection calls.

    def announce(self, length: bytes) -> None:
        """The head says how long the body will be."""
        # Seven digits are less than any limit that makes sense, and need no second look.
        if len(length) <= 7 or not length.isdigit() or self.refusal is not None:
            return
        if int(length) > self._router.config.max_body_bytes:
            self.refusal = self._router.too_large()

    def whole(self, body: bytes) -> None:
        """All of the body has arrived with the head."""
        self.request_complete = True
        self.bytes_in = len(body)
        if self.bytes_in > self._router.config.max_body_bytes and self.refusal is None:
            self.refusal = self._router.too_large()
        self._body = body
        self.start()

    def part(self, piece: bytes) -> None:
        """A piece of the request's body."""
        self.bytes_in += len(piece)
        if self.refusal is not None:
            return
        parts = self._parts
        if parts is None:
            self._parts = [piece]
        elif len(parts) < _MANY_PARTS:
            parts.append(piece)
        else:  # chunks of some bytes each would take many times their size
            last = parts[-1]
            if not isinstance(last, bytearray):
                last = bytearray()
                parts.append(last)
            last += piece
        if self.bytes_in > self._router.config.max_body_bytes:
            self._parts = None
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
        except Exception as fault:
            self._fail(fault)

    def _fail(self, fault: Exception) -> None:
        """Our own fault."""
        log.error("request %s", self.ident.decode(), exc_info=fault)
        self._let_go()
        self.refuse(RequestError(500, "the router failed; its log says why", cause="bug"))

    def client_left(self) -> None:
        """The client's connection is gone: the engine need not go on."""
        if self.state == OVER:
            return
        self.status = CLIENT_LEFT
        self.cause = "client_left"
        self._let_go()
        self._end()

    def client_stalled(self) -> None:
        """The client does not read what it asked for."""
        self.client_left()
        self._client.cut()

    def _is_next(self) -> bool:
        return self._client.attends(self)

    def upload_stalled(self) -> None:
        """The client does not send what it announced."""
        if not self._is_next():
            return  # nor is it read, while others are before it
        message = "the body of the request did not arrive in time"
        self.refuse(RequestError(408, message, cause="slow_upload"))

    # Where it goes.

    def _route(self) -> None:
        """Look into the body, find who serves it, and ask to be let in."""
        router = self._router
        head = self.head
        fields = head.fields
        parts = self._parts
        if parts is not None:
            self._body = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
            self._parts = None
        body = self._body
        route = self.route
        self._named, self.stream, data, prompt_at = peek(route, head.form, body)
        group = self._group = router.find_group(self._named, self.key)
        self.model = group.name
        tokens = 0
        if data is not None:
            if router.config.check:
                check(route, data, group.longest)
            uneven = group.uneven
            if self.key.tokens_per_min or uneven or len(body) > router.config.long_body_bytes:
                output = output_tokens(route, data) or 0
                self._endless = not output
                self._sparse = data.get("stream_interval") is not None
                tokens = self._tokens = floor_tokens(route, data) + output
                if uneven:
                    self._tokens = max(tokens, _likely_tokens(body) + output)
        elif self._named is None and self.key.models:
            message = "the field 'model' is missing: the key is for some models only"
            raise RequestError(400, message, param="model", cause="model")
        if router.by_prefix:
            if prompt_at:
                self._keys = blocks(body, prompt_at)
            if b"x-session-id" in fields:
                self._session = xxh3_64_intdigest(fields[b"x-session-id"])
        if b"x-exaslurm-replica" in fields:
            self._pinned = router.find_replica(fields[b"x-exaslurm-replica"], group)
        self.state = WAITING
        self._tokens_asked = tokens
        if not group.usable_count and group.may_wake:
            router.held.hold(self, tokens)
            return
        self._enter(group)

    def _enter(self, group: Group) -> None:
        """Ask to be let in."""
        admitted = self._router.admission.enter(self, self._tokens_asked, group.usable_count)
        self._entered = True
        if admitted:
            self._router.budget.earn()
            self._attempt()

    def woken(self) -> None:
        """There is a replica now."""
        group = self._group = self._router.table.group(self.model) or self._group
        assert group is not None
        try:
            self._enter(group)
        except RequestError as error:
            self.refuse(error)
        except Exception as fault:
            self._fail(fault)

    def _hold_again(self) -> bool:
        """Whether it waits for a replica to be started, since the last one has just gone."""
        router = self._router
        group = router.table.group(self.model)
        if group is None or group.usable_count or not group.may_wake or self._pinned is not None:
            return False
        if self._last is not None and not self._may_retry(self._last, time.monotonic()):
            return False
        self._tried, self._last = (), None
        self.state = WAITING
        try:
            router.held.hold(self, self._tokens_asked)
            self._entered = False
        except RequestError as error:
            self.refuse(error)
        return True

    @property
    def priority(self) -> int:
        return self.key.priority

    def admitted(self) -> None:
        """It may go to an engine now, after it has waited."""
        self._router.budget.earn()
        self._attempt_anew()

    def _attempt_anew(self) -> None:
        """Send it to the next replica of those that there are by now, or give up. Whoever calls
        has other requests to think of, too."""
        table = self._router.table
        group = self._group
        assert group is not None
        # None: nothing serves this name any more; then the old group must not be asked, either.
        self._group = table.group(group.name) or Group(group.name)
        if self._pinned is not None:
            self._pinned = table.target(self._pinned.ident) or self._pinned
        try:
            self._attempt()
        except Exception as fault:
            self._fail(fault)

    def refused(self, error: RequestError) -> None:
        """It waited in vain."""
        self.refuse(error)

    def _attempt(self) -> None:
        """Send it to the next replica, or give up."""
        now_s = time.monotonic()
        found = self._next(now_s)
        if found is None:
            self._give_up()
            return
        self._tried += (found,)
        self._target = found
        self.replica = found.ident
        found.outstanding += 1
        self.state = SENT
        self.sent_s = self.moved_s = now_s
        last = self._last
        self._handle = self._send_to(found, self, last is not None and last.stale)

    def _next(self, now_s: float) -> Target | None:
        """The replica for this attempt; None if there shall be none."""
        router = self._router
        group = self._group
        assert group is not None
        last = self._last
        if last is not None and not self._may_retry(last, now_s):
            return None
        if self._pinned is not None:
            self.version = self._pinned.replica.version
            again = not self._tried or (last is not None and last.stale)
            return self._pinned if again and not self._pinned.endpoint.retired else None
        found = router.table.pick(
            group,
            now_s,
            self._tried,
            self.key.name,
            self._keys,
            self._session,
            self._tokens,
        )
        if found is None:
            # With no other one, a replica of which nothing bad is known, by a new connection.
            if last is not None and last.stale and not self._tried[-1].endpoint.retired:
                return self._tried[-1]
            return None
        target, lane = found
        self.version = lane.version
        if last is not None:
            self.retries += 1
            router.metrics.retried(last.reason)
        if self._keys and lane.affinity is not None:
            lane.affinity.sent(self._keys, target)
        return target

    def _may_retry(self, last: Refusal, now_s: float) -> bool:
        config = self._router.config
        if len(self._tried) >= config.max_attempts or self._sends >= config.max_sends:
            return False
        return not last.sent or self._router.budget.spend(now_s)

    def hedge(self) -> None:
        """The answer is slow to come: ask a second replica, once."""
        if self._hedged or self._pinned is not None:
            return
        self._hedged = True
        router = self._router
        assert self._group is not None
        now_s = time.monotonic()
        group = router.table.group(self._group.name)
        if group is None or not router.budget.spend(now_s):
            return
        found = router.table.pick(
            group, now_s, self._tried, key_name=self.key.name, tokens=self._tokens
        )
        if found is None:
            return
        target, lane = found
        length = target.replica.max_model_len
        if length is not None and length < self._tokens:  # there is none that it fits
            router.table.told_nothing(target, now_s)
            return
        router.metrics.retried("hedge")
        self._tried = (*self._tried, target)
        self._hedge = hedge = Hedge(
            target, lane.version, router.table, self._hedge_won, self._hedge_lost
        )
        hedge.request = self._send_to(target, hedge)

    def _send_to(self, target: Target, receiver: Receiver, fresh: bool = False) -> Request:
        endpoint = target.endpoint
        head = self.head
        body = self._body
        name = target.engine_model
        if name and name != self.model:
            body = replace_model(body, name, head.form, named=self._named)
        start = b"".join(
            (
                endpoint.before_url,
                head.url,
                endpoint.after_url,
                head.forwarded,
                b"x-request-id: ",
                self.ident,
                b"\r\ncontent-length: %d\r\n\r\n" % len(body),
            )
        )
        return self._router.upstream.send(receiver, endpoint, start, body, fresh)

    def _try_another(self, refusal: Refusal) -> None:
        self._sends += refusal.sent
        self._last = refusal
        self._router.metrics.attempt_failed(self)
        self._attempt_anew()

    # How it ends.

    def _give_up(self) -> None:
        """No replica will answer it: say what the last one said, or why there is none."""
        if self._hold_again():
            return
        router = self._router
        last = self._last
        self.cause = last.reason if last is not None else "no_replica"
        if last is None or last.answer is None:
            assert self._group is not None
            tried = [target.ident for target in self._tried]
            message = last.message if last is not None else ""
            self.refuse(router.no_answer(self._group, tried, message, sent=bool(self._sends)))
            return
        head, body = last.answer
        self.status = head.status
        framing = b"content-length: %d\r\n" % len(body)
        self._write(self._answer_head(head, self._tried[-1], framing, body))
        self._complete()

    def refuse(self, error: RequestError) -> None:
        """Answer with an error of the router's own."""
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
            any_origin=self._router.any_origin and self.head.is_from_page,
        )
        self._write(head + body)
        self._complete()

    def _complete(self) -> None:
        """The client has its answer."""
        self.response_complete = True
        self._end()
        self._client.over(self)

    def _used_tokens(self) -> int | None:
        """As the engine counted them; none for an error; None: nobody knows."""
        prompt, completion = self.prompt_tokens, self.completion_tokens
        if prompt is not None or completion is not None:
            return (prompt or 0) + (completion or 0)
        if self.status >= 400 and self.status != CLIENT_LEFT:
            return 0
        # Of a stream there is a token in each event at least, but for two or three; in how many
        # there are several, and in what has passed of an answer that was to tell it at its end,
        # only the bytes tell, unless the request said how many there may be.
        told = self.events - _EVENTS_WITHOUT_TOKEN
        unseen = self.status == CLIENT_LEFT and isinstance(self._relay, Body)
        if self._endless and (self._sparse or unseen):
            text = self.bytes_out - _BYTES_OF_EVENT * (self.events + 1)
            told = max(told, text // _BYTES_OF_TOKEN)
        if self._group is not None and self._group.longest is not None:
            told = min(told, self._group.longest)
        return told if told > self._tokens_asked else None

    def _end(self) -> None:
        self.state = OVER
        self.ended_s = time.monotonic()
        if self._entered:
            self._entered = False
            self._router.admission.leave(self, self._used_tokens())
        elif len(self._router.held):
            self._router.held.discard(self)
        if self._hedge is not None:
            self._drop_hedge()
        self._parts = None
        self._body = self._held = b""
        self._router.ended(self)


def _likely_tokens(body: bytes) -> int:
    """About how many tokens a body of text has: which replica is chosen may depend on it, no more.
    Of pictures and sound the bytes tell nothing."""
    return 0 if b";base64," in body else len(body) // _BYTES_OF_TOKEN
