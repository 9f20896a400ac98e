"""Gauges that are read off the router's table and gate when somebody asks. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from exaslurm.router.admission import Admission
from exaslurm.router.exposition import Family
from exaslurm.router.held import Held
from exaslurm.router.table import Table


def table_families(table: Table, admission: Admission) -> Iterator[Family]:
    """Replicas by what the router thinks of them, and who waits for them."""
    states: list[tuple[tuple[str, ...], tuple[float, ...]]] = []
    outstanding: list[tuple[tuple[str, ...], tuple[float, ...]]] = []
    for group in table.groups:
        for lane in group.lanes:
            usable, closed = len(lane.usable), len(lane.closed)
            labels = (group.name, lane.version)
            states.append(((*labels, "usable"), (closed,)))
            states.append(((*labels, "ejected"), (usable - closed,)))
            states.append(((*labels, "not_ready"), (len(lane.members) - usable,)))
            count = sum(target.outstanding for target in lane.members)
            outstanding.append((labels, (count,)))
    yield Family(
        "exaslurm_router_replicas",
        "gauge",
        "Replicas by served name, model version and what the router thinks of them",
        ("model", "version", "state"),
        states,
        rule="max",
    )
    yield Family(
        "exaslurm_router_outstanding",
        "gauge",
        "Requests sent to replicas and not finished",
        ("model", "version"),
        outstanding,
    )
    yield Family(
        "exaslurm_router_waiting",
        "gauge",
        "Requests that wait for their turn at a replica",
        ("model",),
        [((name,), (model.waiting,)) for name, model in admission.figures().models.items()],
    )


def held_families(held: Held) -> Iterator[Family]:
    """Who waits for a model to come up."""
    yield Family(
        "exaslurm_router_held",
        "gauge",
        "Requests that wait for a first replica of their model",
        ("model",),
        [((name,), (count,)) for name, count in held.counts().items()],
    )
