"""The router's figures, for Prometheus. Labels are bounded: fixed routes, served names, codes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from exaslurm.router.table import Table

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
UNKNOWN_MODEL = "-"
_BUCKETS_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
)  # fmt: skip


class Accounts:
    """Counters of one router process. ``model`` is a served name, or ``-`` before it is known."""

    def __init__(self, table: Table) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.requests = Counter(
            "exaslurm_router_requests",
            "Requests by route, served name and the status the client got (499: it left first)",
            ("route", "model", "status"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "exaslurm_router_request_seconds",
            "Seconds from the request's head to the end of the answer",
            ("route", "model"),
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self.first_byte_seconds = Histogram(
            "exaslurm_router_first_byte_seconds",
            "Seconds from the request's head to the first byte of the answer's body",
            ("route", "model"),
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self.retries = Counter(
            "exaslurm_router_retries",
            "Requests sent to another replica, by what happened at the first",
            ("reason",),
            registry=self.registry,
        )
        self.broken_streams = Counter(
            "exaslurm_router_broken_streams",
            "Answers that were lost after their first byte",
            ("model",),
            registry=self.registry,
        )
        self.ejections = Counter(
            "exaslurm_router_ejections",
            "Replicas left alone after failures",
            registry=self.registry,
        )
        self.registry.register(_TableFigures(table))
        table.on_eject = lambda _target: self.ejections.inc()

    def done(
        self, route: str, model: str, status: int, seconds: float, first_byte_s: float | None
    ) -> None:
        """One request is over."""
        self.requests.labels(route, model, str(status)).inc()
        self.seconds.labels(route, model).observe(seconds)
        if first_byte_s is not None:
            self.first_byte_seconds.labels(route, model).observe(first_byte_s)

    def render(self) -> bytes:
        return generate_latest(self.registry)


class _TableFigures(Collector):
    """Gauges that are read off the table when somebody asks."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        replicas = GaugeMetricFamily(
            "exaslurm_router_replicas",
            "Replicas by served name and what the router thinks of them",
            labels=("model", "state"),
        )
        outstanding = GaugeMetricFamily(
            "exaslurm_router_outstanding",
            "Requests sent to replicas and not finished",
            labels=("model",),
        )
        for name in self._table.names:
            group = self._table.group(name)
            if group is None:
                continue
            usable, closed = len(group.usable), len(group.closed)
            replicas.add_metric((name, "usable"), closed)
            replicas.add_metric((name, "ejected"), usable - closed)
            replicas.add_metric((name, "not_ready"), len(group.members) - usable)
            outstanding.add_metric((name,), sum(t.outstanding for t in group.members))
        yield replicas
        yield outstanding
