"""Whether a cell's next job can run beside it, by the limits that Slurm shows. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from exaslurm.core.plan import CellPlan, ComponentPlan, Plan
from exaslurm.slurm.limits import JOBS, QUEUED, Ceiling, QueueLimits, ceilings_of

_THINGS = {
    "node": "nodes",
    "cpu": "CPUs",
    "mem": "MiB of memory",
    "gres/gpu": "GPUs",
    JOBS: "running jobs",
    QUEUED: "jobs in the queue",
}


def why_no_overlap(plan: Plan, limits: QueueLimits) -> str | None:
    """A sentence where the deployment and one more job of its largest cell are above a limit, so
    that a cell has to end before its next job can start; None where they are not, as far as Slurm
    tells. What others use is not looked at."""
    worst: tuple[float, str] | None = None
    for ceiling, parts in _held(plan, limits):
        need = _sum([part for cell in parts for part in cell])[ceiling.what]
        more = max(_sum(cell)[ceiling.what] for cell in parts)
        # What does not even fit once is for sbatch to say.
        if more == 0 or need > ceiling.most or need + more <= ceiling.most:
            continue
        over = (need + more) / max(ceiling.most, 1.0)
        if worst is None or over > worst[0]:
            worst = over, _sentence(need + more, ceiling)
    return worst[1] if worst is not None else None


def _sentence(both: float, ceiling: Ceiling) -> str:
    thing = _THINGS[ceiling.what]
    return (
        f"a cell's next job cannot start before the cell ends: side by side they would be "
        f"{both:g} {thing}, and {ceiling.where} has or allows {ceiling.most:g}. Each time, nobody "
        "serves from the end of the one until the other is up ('status' and the history tell how "
        "long that was)"
    )


def _held(plan: Plan, limits: QueueLimits) -> list[tuple[Ceiling, list[Sequence[ComponentPlan]]]]:
    """Each ceiling, with what is below it: the components of each cell."""
    found: dict[Ceiling, list[Sequence[ComponentPlan]]] = {}
    for cell in plan.cells:
        below: dict[Ceiling, list[ComponentPlan]] = {}
        for part in cell.components:
            for ceiling in _ceilings(part, limits):
                below.setdefault(ceiling, []).append(part)
        for ceiling, parts in below.items():
            found.setdefault(ceiling, []).append(parts)
    return list(found.items())


def _ceilings(part: ComponentPlan, limits: QueueLimits) -> tuple[Ceiling, ...]:
    asked = dict(part.directives)
    partition, reservation = asked.get("partition"), asked.get("reservation")
    found = ceilings_of(
        limits, partition=partition, qos=asked.get("qos"), account=asked.get("account")
    )
    found += limits.reservations.get(reservation or "", ())
    known = limits.partitions.get(partition or "")
    whole = "exclusive" in asked or (known is not None and known.whole_nodes)
    # Jobs that share nodes are counted by what they take of them.
    places = ("partition ", "reservation ")
    return tuple(
        item for item in found if whole or item.what != "node" or not item.where.startswith(places)
    )


def _sum(parts: Sequence[ComponentPlan]) -> Counter[str]:
    found: Counter[str] = Counter()
    for part in parts:
        found["node"] += part.nodes
        found["cpu"] += part.nodes * part.cpus_per_node
        found["mem"] += part.nodes * (part.mem_mib_per_node or 0)
        found["gres/gpu"] += part.nodes * part.gpus_per_node
        found[JOBS] += 1
        found[QUEUED] += 1
    return found


def names_reservation(cells: Sequence[CellPlan]) -> bool:
    """Whether a job asks for a reservation."""
    return any(
        dict(part.directives).get("reservation") for cell in cells for part in cell.components
    )
