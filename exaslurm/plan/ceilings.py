"""What the site allows at most: sizes, times and numbers of jobs, and keys that a spec may give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exaslurm.core.plan import CellPlan, ComponentPlan
from exaslurm.plan.context import Findings
from exaslurm.site.locks import SPEC_PREFIX
from exaslurm.site.model import Site
from exaslurm.site.queues import Queue
from exaslurm.spec.model import Spec
from exaslurm.util.checked import keys_at
from exaslurm.util.fields import time_limit_s
from exaslurm.util.yaml_lines import key_path, key_text, nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One component as the limits of a site see it."""

    nodes: int
    is_head: bool
    partition: str | None
    qos: str | None
    time_limit: str | None


def check_job(job: Job, spec: Spec, site: Site, findings: Findings) -> None:
    """One component against the limits of its partition and its quality of service."""
    most = site.limits.max_time
    if job.time_limit and most and time_limit_s(job.time_limit) > time_limit_s(most):
        findings.add(
            spec.problem("time_limit", f"{job.time_limit} asked, site {site.name} allows {most}")
        )
    listed: tuple[tuple[str, str | None, Mapping[str, Queue]], ...] = (
        ("partition", job.partition, site.partitions),
        ("qos", job.qos, site.qos),
    )
    for key, name, queues in listed:
        if name is None or not queues:
            continue
        queue = queues.get(name)
        if queue is None:
            message = f"site {site.name} has no {key} {name!r}{nearest(name, queues)}"
            findings.add(spec.problem(key, message))
        else:
            _check_queue(job, f"{key} {name}", queue, spec, findings)


def _check_queue(job: Job, where: str, queue: Queue, spec: Spec, findings: Findings) -> None:
    key = "head" if job.is_head else "workers"
    most, least = queue.most_nodes(), queue.min_nodes
    if most is not None and job.nodes > most:
        text = f"{job.nodes} nodes in one cell, but {where} allows {most}: set nodes_per_cell"
        findings.add(spec.problem(key, text))
        return
    if least is not None and job.nodes < least:
        text = f"{_nodes(job.nodes)} in one cell, but {where} takes {least} or more"
        findings.add(spec.problem(key, text))
    if job.time_limit is None:
        return
    longest_s = queue.longest_s(job.nodes)
    if time_limit_s(job.time_limit) <= longest_s:
        return
    allowed = time_text(longest_s)
    if queue.max_time is not None and time_limit_s(queue.max_time) <= longest_s:
        allowed = queue.max_time
    elif job.is_head:
        allowed += " to the one node of the head"
    else:
        allowed += f" to a job of {_nodes(job.nodes)}"
    findings.add(spec.problem("time_limit", f"{job.time_limit} asked, {where} allows {allowed}"))


def time_text(seconds: float) -> str:
    """Hours, minutes and seconds as Slurm writes them."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest:02}"


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def check_totals(spec: Spec, site: Site, cells: Sequence[CellPlan], findings: Findings) -> None:
    """Ceilings for the whole deployment, and for the components of a cell."""
    parts = [part for cell in cells for part in cell.components]
    limits = site.limits
    replicas = sum(item.count for cell in cells for item in cell.replica_sets)
    totals = (
        ("workers", sum(part.nodes for part in parts), limits.max_nodes, "nodes"),
        (
            "workers",
            sum(part.nodes * part.gpus_per_node for part in parts),
            limits.max_gpus,
            "GPUs",
        ),
        ("models", replicas, limits.max_replicas, "replicas"),
    )
    for key, asked, most, things in totals:
        if most is not None and asked > most:
            text = f"{asked} {things} asked, site {site.name} allows {most}"
            findings.add(spec.problem(key, text))
    _check_jobs(spec, site, cells, parts, findings)
    _check_counts(spec, site, parts, findings)
    steps, most_steps = max(len(cell.components) for cell in cells), site.slurm.max_steps
    if most_steps is not None and steps > most_steps:
        text = f"{steps} components are as many steps; site {site.name} allows {most_steps}"
        findings.add(spec.problem("workers", text))


def _check_jobs(
    spec: Spec,
    site: Site,
    cells: Sequence[CellPlan],
    parts: Sequence[ComponentPlan],
    findings: Findings,
) -> None:
    """Slurm counts every component as a job: at the site, in a partition, with a QOS."""
    asked = [(f"site {site.name}", len(parts), site.limits.max_jobs)]
    listed: tuple[tuple[str, Mapping[str, Queue]], ...] = (
        ("partition", site.partitions),
        ("qos", site.qos),
    )
    for option, queues in listed:
        counts = Counter(dict(part.directives).get(option) for part in parts)
        asked += [(f"{option} {name}", counts[name], it.max_jobs) for name, it in queues.items()]
    for where, jobs, most in asked:
        if most is not None and jobs > most:
            text = (
                f"{len(cells)} cells are {jobs} jobs to Slurm, which counts every component; "
                f"{where} allows {most}: use larger cells"
            )
            findings.add(spec.problem("workers", text))


def _check_counts(
    spec: Spec, site: Site, parts: Sequence[ComponentPlan], findings: Findings
) -> None:
    """No more nodes of a kind than there are."""
    asked: Counter[str] = Counter()
    for part in parts:
        asked[part.kind] += part.nodes
    for name, nodes in asked.items():
        there = site.node_kinds[name].count
        if there is not None and nodes > there:
            text = f"{nodes} nodes of kind {name} asked, site {site.name} has {there}"
            findings.add(spec.problem("workers", text))


def check_locks(spec: Spec, site: Site, findings: Findings) -> None:
    """Keys that the site's administrators keep to themselves."""
    for index, lock in enumerate(site.locks):
        if not lock.startswith(SPEC_PREFIX):
            continue
        wanted = [str(part) for part in key_path(lock.removeprefix(SPEC_PREFIX))]
        for end, part in enumerate(wanted):
            known = keys_at(Spec, tuple(wanted[:end]))
            if known and part not in known:
                text = f"a spec has no key {'.'.join(wanted)!r}{nearest(part, known)}"
                findings.add(site.problem(f"locks[{index}]", text))
                break
        for place in _given(spec.document.data, wanted):
            where = site.where(f"locks[{index}]")
            text = f"locked by site {site.name} ({where}): leave it out"
            findings.add(spec.problem(key_text(place), text))


def _given(
    data: Any, wanted: Sequence[str], here: tuple[str | int, ...] = ()
) -> Iterator[tuple[str | int, ...]]:
    """Where a spec gives a key; lists are looked through."""
    if isinstance(data, list):
        for index, item in enumerate(data):
            yield from _given(item, wanted, (*here, index))
    elif not wanted:
        yield here
    elif isinstance(data, dict) and wanted[0] in data:
        inner, path = data[wanted[0]], (*here, wanted[0])
        if len(wanted) == 1:
            yield path
        else:
            yield from _given(inner, wanted[1:], path)
