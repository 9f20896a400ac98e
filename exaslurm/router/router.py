"""One router process: what all its requests share, and the sweep that gives it a sense of time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from email.utils import formatdate
from typing import TYPE_CHECKING

from exaslurm.core.canary import Canary
from exaslurm.keys.clients import ClientKeys, KeyInfo
from exaslurm.registry.replica import Replica, ReplicaSource
from exaslurm.router.admission import Admission
from exaslurm.router.answering import HOLDING, PASSING, READING, SENT
from exaslurm.router.audit import Audit
from exaslurm.router.budget import RetryBudget
from exaslurm.router.call import Call
from exaslurm.router.config import RouterConfig
from exaslurm.router.errors import RequestError
from exaslurm.router.exchange import Exchange
from exaslurm.router.figures import held_families, table_families
from exaslurm.router.heads import Memory, RequestHead
from exaslurm.router.held import Held
from exaslurm.router.loads import Loads
from exaslurm.router.metrics import Metrics
from exaslurm.router.outbox import Outbox
from exaslurm.router.quotas import SharedQuotas
from exaslurm.router.reweigh import Weigher
from exaslurm.router.routes import PROXIED
from exaslurm.router.table import Group, Table, Target
from exaslurm.router.upstream import Upstream, drop_idle

if TYPE_CHECKING:
    from exaslurm.router.protocol import RouterProtocol

log = logging.getLogger(__name__)

COMPILED = not __file__.endswith(".py")
"""Whether this is the router as compiled (setup.py)."""

SWEEP_S = 0.25
_WEIGH_EVERY_S = 1.0
_COMPLAIN_EVERY_S = 10.0
_SHOWN_CHARS = 200


class Router:
    """Everything that requests share. ``start`` and ``close`` belong to one event loop."""

    __slots__ = (
        "_anyone",
        "_canary",
        "_loop",
        "_next_complaint_s",
        "_next_weighing_s",
        "_replicas",
        "_retry",
        "_timer",
        "_wakeable",
        "_weigher",
        "active",
        "admission",
        "any_origin",
        "audit",
        "budget",
        "by_prefix",
        "config",
        "connections",
        "date_line",
        "heads",
        "held",
        "held_counts",
        "keys",
        "metrics",
        "now_s",
        "outbox",
        "source",
        "started_s",
        "table",
        "upstream",
        "wall_s",
    )

    def __init__(
        self,
        config: RouterConfig,
        source: ReplicaSource,
        keys: ClientKeys | None,
        audit: Audit | None = None,
        loads: Loads | None = None,
        quotas: SharedQuotas | None = None,
    ) -> None:
        """``keys`` None: nobody is asked for one (a router for this host alone). ``loads`` and
        ``quotas``: what the routers of this host share."""
        self.config = config
        self.source = source
        self.keys = keys
        # Any page may use its user's key. Where none is asked for, any page that somebody on this
        # host opens could use the engines: then no page of another origin may.
        self.any_origin = keys is not None
        self.audit = audit
        self.by_prefix = config.policy == "affinity"
        self.table = Table(key=config.internal_key, by_prefix=self.by_prefix, canary=config.canary)
        self.admission = Admission(config.limits, quotas=quotas, processes=config.processes)
        self.held = Held(config.limits.of_one(config.processes), self.admission, self._soon)
        self.held_counts: Mapping[str, int] = {}
        """How many wait for a first replica, by served name, of late. For any thread."""
        self.budget = RetryBudget()
        self.metrics = Metrics(PROXIED)
        self.upstream: Upstream = None  # type: ignore[assignment]
        self.outbox: Outbox = None  # type: ignore[assignment]
        self.active: set[Exchange] = set()
        self.connections: set[RouterProtocol] = set()
        self.heads: Memory[RequestHead] = Memory()
        self.now_s = time.monotonic()
        self.started_s = self.wall_s = time.time()
        self._anyone = KeyInfo(name="anyone", created_s=0.0)
        self._canary: Canary | None = None
        self._wakeable: Mapping[str, str] | None = None
        self._replicas: Sequence[Replica] = ()
        self._timer: asyncio.TimerHandle | None = None
        self.date_line = b""
        self._weigher = Weigher(loads)
        self._next_weighing_s = 0.0
        self._next_complaint_s = 0.0
        self._retry = {"Retry-After": str(config.retry_after_s)}
        self.table.on_eject = self._ejected
        self.table.on_removed = self._removed
        self.table.on_change = self._changed
        self.metrics.watch(lambda: table_families(self.table, self.admission))
        self.metrics.watch(lambda: held_families(self.held))
        self.metrics.watch(lambda: self.metrics.busy(self.active, time.monotonic()))
        if audit is not None:
            self.metrics.watch(audit.families)

    def start(self) -> None:
        """Begin to work, in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self.outbox = Outbox()
        self.upstream = Upstream(self.config, self.outbox)
        self.source.subscribe(self._update)
        self.source.subscribe_loads(lambda loads: self.table.loads(loads, self.now_s))
        self._sweep()

    def close(self) -> None:
        """Stop working: what is left of requests ends without a word."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for exchange in list(self.active):
            exchange.client_left()
        self.upstream.close(lambda: [target.endpoint for target in self.table.targets])

    def divide(self, canary: Canary) -> None:
        """Divide requests among versions of models anew, soon. From any thread."""
        self._canary = canary

    def may_wake(self, names: Mapping[str, str]) -> None:
        """See ``Table.may_wake``; soon. From any thread."""
        self._wakeable = names

    def cut_off(self) -> int:
        """End every request at hand with an answer that says so; how many there were."""
        left = list(self.active)
        message = "the router is shutting down"
        error = RequestError(503, message, headers=self._retry, cause="router_stopped")
        for exchange in left:
            exchange.cut_off(error)
        return len(left)

    # What requests ask.

    def began(self, exchange: Exchange) -> None:
        self.metrics.begun += 1
        self.active.add(exchange)

    def ended(self, exchange: Exchange) -> None:
        self.active.discard(exchange)
        self.metrics.done(exchange)
        if self.audit is not None:
            self.audit.record(exchange)

    def authenticate(self, fields: Mapping[bytes, bytes]) -> KeyInfo:
        """Whose key a request shows (``Authorization: Bearer`` or ``X-Api-Key``); RequestError
        401."""
        keys = self.keys
        if keys is None:
            return self._anyone
        shown = fields.get(b"authorization")
        if shown is not None:
            info = keys.find(shown, self.wall_s)
        else:
            shown = fields.get(b"x-api-key", b"")
            info = keys.find_key(shown, self.wall_s) if shown else None
        if info is None:
            raise self._unknown_key(keys, shown=bool(shown))
        return info

    def recognise(self, head: RequestHead) -> KeyInfo:
        """The same for a head, which may have been recognised before."""
        keys = self.keys
        info = head.key
        if (
            info is None
            or keys is None
            or head.key_as_of is not keys.state
            or info.expires_at_s is not None
        ):
            info = head.key = self.authenticate(head.fields)
            head.key_as_of = None if keys is None else keys.state
        return info

    @staticmethod
    def _unknown_key(keys: ClientKeys, *, shown: bool) -> RequestError:
        if shown:
            message = "this API key is unknown or expired"
        else:
            message = "no API key: send 'Authorization: Bearer KEY'"
        if keys.empty:
            message += "; no key exists yet: make one with 'exaslurm key add'"
        # A new one each time: an error that is raised again keeps every frame that it came through.
        return RequestError(401, message, headers={"WWW-Authenticate": "Bearer"}, cause="key")

    def too_large(self) -> RequestError:
        return RequestError(
            413,
            f"the body is larger than {self.config.max_body_bytes} bytes, the limit of this router",
            cause="too_large",
        )

    def circle(self) -> RequestError:
        """For a request that came back: another replica may be a better way for it."""
        return RequestError(
            503,
            "this request has been here before: the replicas of this router lead back to it",
            cause="circle",
        )

    def find_group(self, model: str | None, key: KeyInfo) -> Group:
        """The replicas that a request for ``model`` means; RequestError."""
        table = self.table
        if model is not None:
            group = table.group(model)
            if group is not None and key.allows(model):
                return group
            if group is not None:
                message = f"the key {key.name!r} is not for the model {model!r}"
                raise RequestError(403, message, param="model", cause="model")
        else:
            group = table.only_group()
            if group is not None and key.allows(group.name):
                return group
        if not table.names:
            raise RequestError(
                503, "no model is served yet", headers=self._retry, cause="no_replica"
            )
        known = ", ".join(filter(key.allows, table.names)) or "none that this key may use"
        if model is None:
            message = f"the field 'model' is missing; served here: {known}"
            raise RequestError(400, message, param="model", cause="model")
        shown = model if len(model) <= _SHOWN_CHARS else f"{model[:_SHOWN_CHARS]}..."
        message = f"the model {shown!r} does not exist; served here: {known}"
        raise RequestError(404, message, param="model", cause="model")

    def find_replica(self, wanted: bytes, group: Group) -> Target:
        """The replica that a request names in ``X-Exaslurm-Replica``; RequestError."""
        name = wanted.decode("latin-1")[:_SHOWN_CHARS]
        target = self.table.target(name)
        if target is None or all(target not in lane.members for lane in group.lanes):
            message = f"no replica {name!r} serves {group.name!r} (X-Exaslurm-Replica)"
            raise RequestError(400, message, param="X-Exaslurm-Replica", cause="replica")
        if not target.replica.takes_requests:
            state = target.replica.state or "not ready"
            message = f"replica {name!r} takes no requests now: {state}"
            raise RequestError(503, message, headers=self._retry, cause="no_replica")
        return target

    def no_answer(
        self, group: Group, tried: Sequence[str], last: str, *, sent: bool
    ) -> RequestError:
        """Why a request could not be answered."""
        if not tried:
            states = sorted({target.replica.state or "not ready" for target in group.members})
            return RequestError(
                503,
                f"no replica of {group.name!r} takes requests now "
                f"({len(group.members)} known: {', '.join(states)})",
                headers=self._retry,
                cause="no_replica",
            )
        return RequestError(
            502 if sent else 503,
            f"no replica of {group.name!r} answered "
            f"(tried {', '.join(tried)}; the last one: {last})",
            headers=self._retry,
            cause="no_replica",
        )

    def out_of_means(self, reason: str) -> RequestError:
        """The router itself cannot go on with a request."""
        if self.now_s >= self._next_complaint_s:
            self._next_complaint_s = self.now_s + _COMPLAIN_EVERY_S
            log.error("no connection to engines can be opened: %s", reason)
        message = f"the router cannot open a connection: {reason}"
        return RequestError(503, message, headers=self._retry, cause="router_full")

    # Time.

    def _soon(self, step: Callable[[], None]) -> None:
        self._loop.call_soon(step)

    def _sweep(self) -> None:
        """Everything that happens because time passes."""
        self._timer = self._loop.call_later(SWEEP_S, self._sweep)
        now_s = self.now_s = time.monotonic()
        self.wall_s = time.time()
        self.date_line = f"date: {formatdate(self.wall_s, usegmt=True)}\r\n".encode()
        try:
            self.admission.sweep(now_s)
            self.held.sweep(now_s)
            self.held_counts = self.held.counts() if len(self.held) else {}
            wakeable, self._wakeable = self._wakeable, None
            if wakeable is not None:
                self.table.may_wake(wakeable)
                self.table.update(self._replicas)
            canary, self._canary = self._canary, None
            if canary is not None:
                self.table.divide(canary)
            self._time_out(now_s)
            oldest_s = now_s - self.config.idle_s
            for target in self.table.targets:
                if target.endpoint.idle:
                    drop_idle(target.endpoint, oldest_s)
            for connection in list(self.connections):
                connection.sweep(now_s)
            self._weigher.share()
            if now_s >= self._next_weighing_s:
                self._next_weighing_s = now_s + _WEIGH_EVERY_S
                self._weigher.weigh(self.table.groups, now_s)
        except Exception:  # a router without a sense of time would fail slowly
            log.exception("the sweep")

    def _time_out(self, now_s: float) -> None:
        config = self.config
        hedge_s = config.hedge_after_s
        for exchange in list(self.active):
            idle_s = now_s - exchange.moved_s
            state = exchange.state
            if state in (SENT, HOLDING):
                if idle_s > config.first_byte_timeout_s:
                    message = f"no answer within {config.first_byte_timeout_s:g} s"
                    exchange.timed_out(message)
                elif hedge_s is not None and now_s - exchange.sent_s > hedge_s:
                    exchange.hedge()
            elif state == PASSING:
                if exchange.client_paused:
                    if idle_s > config.slow_client_timeout_s:
                        exchange.client_stalled()
                elif idle_s > config.stall_timeout_s:
                    message = f"the answer has not gone on for {config.stall_timeout_s:g} s"
                    exchange.timed_out(message)
            elif state == READING and not exchange.request_complete:
                late_s = idle_s - config.body_timeout_s
                if late_s > 0 and exchange.bytes_in < late_s * config.min_upload_bytes_per_s:
                    exchange.upload_stalled()

    def _ejected(self, target: Target) -> None:
        self.metrics.ejected()
        log.warning("replica %s is left alone after failures", target.replica.id)
        self.source.recheck(target.replica.id)

    def _removed(self, target: Target) -> None:
        target.endpoint.retired = True
        drop_idle(target.endpoint, float("inf"))

    def _update(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self.table.update(replicas)

    def _changed(self) -> None:
        self._weigher.retain(self.table.targets)
        self.metrics.retain(
            {(group.name, lane.version) for group in self.table.groups for lane in group.lanes}
        )
        self.admission.capacities_changed(
            {group.name: group.usable_count for group in self.table.groups}
        )
        if len(self.held):
            for name in self.held.counts():
                asked = self.table.group(name)
                if asked is None or asked.usable_count or not asked.may_wake:
                    self.held.wake(name)


__all__ = ["COMPILED", "Call", "Router"]
