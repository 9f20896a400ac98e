"""The router's figures: plain integers in lists, put into Prometheus' form when somebody asks.

Every label is bounded: routes are fixed, served names and versions are the registry's, and what
exceeds the bounds is counted as ``other``.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable
from typing import Any

from exaslurm import __version__
from exaslurm.router.call import CLIENT_LEFT, UNKNOWN_MODEL, Call
from exaslurm.router.exposition import Family, Labels, Numbers, dump, render

OTHER = "other"
MAX_SERIES = 2000
MAX_WORDS = 100
BUCKETS_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0, 600.0,
)  # fmt: skip

_SERIES = ("route", "model", "version")


class _Series:
    """What is counted for one route, served name and model version."""

    __slots__ = (
        "broken",
        "bytes_in",
        "bytes_out",
        "completion_tokens",
        "first_byte_s",
        "first_bytes",
        "first_token_s",
        "first_tokens",
        "prompt_tokens",
        "seconds",
        "seconds_s",
        "statuses",
    )

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        self.seconds = [0] * (len(BUCKETS_S) + 1)
        self.seconds_s = 0.0
        self.first_bytes = [0] * (len(BUCKETS_S) + 1)
        self.first_byte_s = 0.0
        self.first_tokens = [0] * (len(BUCKETS_S) + 1)
        self.first_token_s = 0.0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.broken = 0

    def add(self, other: _Series) -> None:
        """What was counted there is counted here from now on."""
        for status, count in other.statuses.items():
            self.statuses[status] = self.statuses.get(status, 0) + count
        for name in ("seconds", "first_bytes", "first_tokens"):
            setattr(self, name, [*map(operator.add, getattr(self, name), getattr(other, name))])
        self.seconds_s += other.seconds_s
        self.first_byte_s += other.first_byte_s
        self.first_token_s += other.first_token_s
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.broken += other.broken


class Metrics:
    """The counters of one router process. Used from its event loop only.

    ``begun`` is for whoever takes requests to count up; each of them is ``done`` exactly once.
    """

    def __init__(self, routes: Collection[str]) -> None:
        self._routes = frozenset(routes)
        self._series: dict[tuple[str, str, str], _Series] = {}
        self._unserved: dict[tuple[int, str], int] = {}
        self._retries: dict[str, int] = {}
        self._failed_attempts: dict[tuple[str, str], int] = {}
        self._ejections = 0
        self._sources: list[Callable[[], Iterable[Family]]] = []
        self.begun = 0

    def done(self, call: Call) -> None:
        """One request is over."""
        series = self._series.get((call.route, call.model, call.version))
        if series is None:
            series = self._find(call)
        status = call.status
        if status in series.statuses:
            series.statuses[status] += 1
        else:
            status = _known_status(status)
            series.statuses[status] = series.statuses.get(status, 0) + 1
        started_s = call.started_s
        seconds = call.ended_s - started_s
        series.seconds[bisect_left(BUCKETS_S, seconds)] += 1
        series.seconds_s += seconds
        if call.first_byte_s is not None:
            seconds = call.first_byte_s - started_s
            bucket = bisect_left(BUCKETS_S, seconds)
            series.first_bytes[bucket] += 1
            series.first_byte_s += seconds
            if call.stream:
                series.first_tokens[bucket] += 1
                series.first_token_s += seconds
        if call.prompt_tokens is not None:
            series.prompt_tokens += call.prompt_tokens
        if call.completion_tokens is not None:
            series.completion_tokens += call.completion_tokens
        series.bytes_in += call.bytes_in
        series.bytes_out += call.bytes_out
        if call.broken:
            series.broken += 1
        if call.cause:
            _count(self._unserved, (status, call.cause), (status, OTHER))

    def retried(self, reason: str) -> None:
        """A request goes to another replica because of ``reason``, one of a few words."""
        _count(self._retries, reason, OTHER)

    def attempt_failed(self, call: Call) -> None:
        """The replica that a request was sent to did not do it; perhaps another one will."""
        key = (call.model, call.version)
        _count(self._failed_attempts, key, (OTHER, ""), most=MAX_SERIES)

    def ejected(self) -> None:
        """A replica is left alone after failures."""
        self._ejections += 1

    def retain(self, served: Collection[tuple[str, str]]) -> None:
        """These served names and versions are there now. Versions come and go for as long as a
        router lives: when half of the room is used, what was counted of those that are gone is
        added up, or the next ones would have no figures of their own."""
        models = {name for name, _ in served}

        def heir(model: str, version: str) -> tuple[str, str]:
            if (model, version) in served or model in (OTHER, UNKNOWN_MODEL):
                return model, version
            if model not in models:
                return OTHER, ""
            return model, OTHER if version else ""

        if 2 * len(self._series) > MAX_SERIES:
            for key, series in list(self._series.items()):
                into = (key[0], *heir(*key[1:]))
                if into != key:
                    del self._series[key]
                    self._series.setdefault(into, _Series()).add(series)
        if 2 * len(self._failed_attempts) > MAX_SERIES:
            before, self._failed_attempts = self._failed_attempts, {}
            for name, count in before.items():
                pair = heir(*name)
                self._failed_attempts[pair] = self._failed_attempts.get(pair, 0) + count

    def watch(self, source: Callable[[], Iterable[Family]]) -> None:
        """Ask ``source`` for its figures, too, whenever somebody asks for all of them."""
        self._sources.append(source)

    def families(self) -> list[Family]:
        """Everything, as of now."""
        found = self._requests()
        found += [
            Family(
                "exaslurm_router_unserved_total",
                "counter",
                "Requests that got no good answer, by what the client got and why",
                ("status", "cause"),
                [((_status(status), cause), (n,)) for (status, cause), n in self._unserved.items()],
            ),
            Family(
                "exaslurm_router_retries_total",
                "counter",
                "Requests sent to another replica, by what happened at the one before",
                ("reason",),
                [((reason,), (n,)) for reason, n in self._retries.items()],
            ),
            Family(
                "exaslurm_router_failed_attempts_total",
                "counter",
                "Attempts that failed before an answer began, by served name and model version; "
                "most were made again elsewhere, and no client saw them",
                ("model", "version"),
                [(key, (n,)) for key, n in self._failed_attempts.items()],
            ),
            Family(
                "exaslurm_router_ejections_total",
                "counter",
                "Replicas left alone after failures",
                samples=[((), (self._ejections,))],
            ),
            Family(
                "exaslurm_router_in_flight",
                "gauge",
                "Requests that have begun and are not over",
                samples=[((), (self.in_flight,))],
            ),
            Family(
                "exaslurm_router_build_info",
                "gauge",
                "1 for the version of exaslurm that runs",
                ("exaslurm",),
                [((__version__,), (1,))],
                rule="max",
            ),
        ]
        for source in self._sources:
            found.extend(source())
        return found

    def busy(self, calls: Iterable[Call], now_s: float) -> list[Family]:
        """How long requests have been here, ``calls`` until ``now_s``: the rate of it is how many
        were here at a time."""
        seconds: dict[str, float] = {}
        for (_, model, _), one in self._series.items():
            seconds[model] = seconds.get(model, 0.0) + one.seconds_s
        for call in calls:
            if call.model != UNKNOWN_MODEL:  # else its time would be taken back when that is known
                seconds[call.model] = seconds.get(call.model, 0.0) + now_s - call.started_s
        return [
            Family(
                "exaslurm_router_busy_seconds_total",
                "counter",
                "Seconds that requests have been here, by served name; those that are not over too",
                ("model",),
                [((model,), (total_s,)) for model, total_s in seconds.items()],
            )
        ]

    @property
    def in_flight(self) -> int:
        """Requests that have begun and are not over."""
        return self.begun - sum(sum(one.statuses.values()) for one in self._series.values())

    def snapshot(self) -> bytes:
        """Everything, as of now, for another process to ``merge``."""
        return dump(self.families())

    def render(self) -> bytes:
        """Everything, as of now, for Prometheus."""
        return render(self.families())

    def _find(self, call: Call) -> _Series:
        """The series of a request that is the first of its kind."""
        route = call.route if call.route in self._routes else OTHER
        key = (route, call.model, call.version)
        if key not in self._series and len(self._series) >= MAX_SERIES:
            key = (route, OTHER, "")
        return self._series.setdefault(key, _Series())

    def _requests(self) -> list[Family]:
        everything = list(self._series.items())

        def counter(name: str, text: str, value: Callable[[_Series], int]) -> Family:
            samples = [(key, (value(one),)) for key, one in everything]
            return Family(f"exaslurm_router_{name}_total", "counter", text, _SERIES, samples)

        def histogram(
            name: str, text: str, numbers: Callable[[_Series], tuple[list[int], float]]
        ) -> Family:
            samples: list[tuple[Labels, Numbers]] = []
            for key, one in everything:
                counts, total = numbers(one)
                samples.append((key, (*counts, total)))
            name = f"exaslurm_router_{name}"
            return Family(name, "histogram", text, _SERIES, samples, BUCKETS_S)

        return [
            Family(
                "exaslurm_router_requests_total",
                "counter",
                "Requests by route, served name, model version and the status that the client got "
                "(499: it left first)",
                (*_SERIES, "status"),
                [
                    ((*key, _status(status)), (n,))
                    for key, one in everything
                    for status, n in one.statuses.items()
                ],
            ),
            histogram(
                "request_seconds",
                "Seconds from the request's head to the end of the answer",
                lambda one: (one.seconds, one.seconds_s),
            ),
            histogram(
                "first_byte_seconds",
                "Seconds from the request's head to the first byte of the answer's body",
                lambda one: (one.first_bytes, one.first_byte_s),
            ),
            histogram(
                "first_token_seconds",
                "Seconds from the request's head to the first token of a streamed answer",
                lambda one: (one.first_tokens, one.first_token_s),
            ),
            counter(
                "prompt_tokens",
                "Tokens of prompts, as engines counted them",
                lambda one: one.prompt_tokens,
            ),
            counter(
                "completion_tokens",
                "Tokens that were generated, as engines counted them",
                lambda one: one.completion_tokens,
            ),
            counter("request_bytes", "Bytes of requests' bodies", lambda one: one.bytes_in),
            counter("answer_bytes", "Bytes of answers, heads included", lambda one: one.bytes_out),
            counter(
                "broken_streams",
                "Answers that were lost after their first byte",
                lambda one: one.broken,
            ),
        ]


def _known_status(status: int) -> int:
    """A status that is counted by itself; 0 stands for all that are no HTTP status."""
    if status == 0:
        return CLIENT_LEFT  # nobody was there to get an answer
    return status if 100 <= status <= 599 else 0


def _status(status: int) -> str:
    return str(status) if status else OTHER


def _count(counts: dict[Any, int], key: object, other: object, *, most: int | None = None) -> None:
    if key in counts:
        counts[key] += 1
        return
    if len(counts) >= (MAX_WORDS if most is None else most):
        key = other
    counts[key] = counts.get(key, 0) + 1
