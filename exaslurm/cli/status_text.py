"""A status as text for a person."""

from __future__ import annotations

from collections import Counter

from exaslurm.cli.fabric_text import fabric_lines
from exaslurm.cli.output import paint, seconds, table
from exaslurm.cli.ray_text import ray_lines
from exaslurm.core.cell import ReplicaStatus
from exaslurm.core.numbers import ranges
from exaslurm.status.gateway import gateway_line
from exaslurm.status.model import CellStatus, DeploymentStatus, Phase, RolloutStatus

PHASE_STYLE: dict[Phase, str] = {
    "ready": "good",
    "queued": "warn",
    "nodes": "warn",
    "ray": "warn",
    "engines": "warn",
    "degraded": "warn",
    "stopping": "warn",
    "failed": "bad",
    "ended": "bad",
    "unknown": "bad",
    "stopped": "dim",
    "unsubmitted": "dim",
}
_STATE_STYLE = {"ready": "good", "failed": "bad"}
MAX_REPLICA_ROWS = 64


def status_text(status: DeploymentStatus) -> str:
    """Headline, first cause, cells, replicas."""
    lines = [headline(status)]
    if status.cause:
        lines.append(f"  cause:    {status.cause}")
    if status.remedy:
        lines.append(f"  remedy:   {status.remedy}")
    if status.slurm_error:
        lines.append(f"  slurm:    gave no answer: {status.slurm_error}")
    if status.base_url:
        lines.append(f"  endpoint: {status.base_url}")
    gateway = gateway_line(status.gateway_jobs)
    if gateway is not None:
        lines.append(f"  gateway:  {gateway}")
    if status.simulated:
        lines.append("  engines:  simulated (answers are made up)")
    lines += [f"  spread:   {sentence}" for sentence in status.spread]
    lines += [f"  note:     {sentence}" for sentence in status.notes]
    lines += rollout_lines(status.rollout)
    lines += ["", _cells(status.cells)]
    replicas = [replica for cell in status.cells for replica in cell.replicas]
    if replicas:
        lines += ["", replica_table(replicas)]
    places = placement_table(replicas)
    if places:
        lines += ["", places]
    per_node = _per_node(replicas)
    if per_node:
        lines += ["", f"replicas per node: {per_node}"]
    notes = [
        f"note: cell {cell.name}: {note}" if len(status.cells) > 1 else f"note: {note}"
        for cell in status.cells
        for note in (*cell.notes, *ray_lines(cell))
    ]
    notes += fabric_lines([node for cell in status.cells for node in cell.nodes])
    return "\n".join(lines + (["", *notes] if notes else []))


def rollout_lines(rollout: RolloutStatus | None) -> list[str]:
    """Where a rollout stands, and by which figures it is judged."""
    if rollout is None:
        return []
    lines = [f"  rollout:  {rollout.sentence}"]
    lines += [f"            {name}: {text}" for name, text in rollout.figures.items()]
    lines += [f"            without the figures of {router}" for router in rollout.silent]
    return lines


def headline(status: DeploymentStatus) -> str:
    """``hello: ready, 3 of 3 replicas (generation 1 on lab)``."""
    phase = paint(status.phase, PHASE_STYLE[status.phase])
    return (
        f"{paint(status.deployment, 'bold')}: {phase}, {status.replicas_ready} of "
        f"{status.replicas_planned} replicas ready (generation {status.generation}, "
        f"site {status.site})"
    )


def _cells(cells: tuple[CellStatus, ...]) -> str:
    several = len({cell.generation for cell in cells}) > 1
    rows = [
        [
            cell.name,
            *([str(cell.generation)] if several else []),
            paint(cell.phase, PHASE_STYLE[cell.phase]),
            (cell.job.id or "-") if cell.job else "-",
            cell.job.state if cell.job else "-",
            f"{cell.nodes_joined}/{cell.nodes_planned}",
            ray_text(cell),
            f"{cell.replicas_ready}/{cell.replicas_planned}",
            {"controller": "live", "registry": "last record", "submission": "-"}[cell.source],
        ]
        for cell in cells
    ]
    header = [
        "CELL",
        *(["GEN"] if several else []),
        "PHASE",
        "JOB",
        "SLURM",
        "NODES",
        "RAY",
        "READY",
        "SEEN",
    ]
    return table(header, rows)


def ray_text(cell: CellStatus) -> str:
    """``4/4``, ``off``, or ``-`` where it is not known."""
    if cell.ray is None:
        return "-"
    if cell.ray.state == "off":
        return "off"
    return f"{cell.ray.nodes_alive}/{cell.ray.nodes_wanted}"


def replica_table(replicas: list[ReplicaStatus]) -> str:
    """One line a replica: place, state, the five phases of its bring-up, pins."""
    shown = sorted(replicas, key=lambda item: (item.state == "ready", item.id))[:MAX_REPLICA_ROWS]
    shown.sort(key=lambda item: item.id)
    rows = [
        [
            item.id,
            f"{item.model}:{item.shard}",
            nodes_text(item),
            paint(item.state, _STATE_STYLE.get(item.state, "warn")),
            seconds(item.phases.reserve_s),
            seconds(item.phases.stage_s),
            seconds(item.phases.load_s),
            seconds(item.phases.warm_up_s),
            seconds(item.phases.register_s),
            str(item.restarts),
            pins(item),
        ]
        for item in shown
    ]
    header = [
        "REPLICA",
        "SHARD",
        "NODE",
        "STATE",
        "RESERVE",
        "STAGE",
        "LOAD",
        "WARM-UP",
        "REGISTER",
        "RESTARTS",
        "CORES",
    ]
    text = table(header, rows)
    left = len(replicas) - len(shown)
    return f"{text}\n... and {left} more (--json shows all)" if left else text


def nodes_text(replica: ReplicaStatus) -> str:
    """Its node; of a replica over several nodes all, the one that answers first."""
    return ",".join(replica.nodes) or replica.node


def pins(replica: ReplicaStatus) -> str:
    """Planned cores, and the actual ones where they differ."""
    planned = ranges(replica.cores)
    if replica.cores_actual is None or not replica.cores:
        return planned or "-"
    actual = ranges(replica.cores_actual)
    return planned if actual == planned else f"{planned} (runs on {actual})"


def placement_table(replicas: list[ReplicaStatus]) -> str:
    """One line a replica that has cores of its own (one for each of its nodes): what was planned,
    what Slurm granted to the step there, what the processes have."""
    parts = [part for item in replicas for part in item.parts or (item,)]
    shown = [part for part in parts if part.pinned][:MAX_REPLICA_ROWS]
    if not shown:
        return ""
    rows = [
        [
            item.id,
            item.node,
            ranges(item.cores),
            ranges(item.cores_granted) or "-",
            "-" if item.cores_actual is None else ranges(item.cores_actual),
            _memory(item),
            _of(",".join(item.gpus), ",".join(item.gpus_granted)),
            item.hca or "-",
            _verdict(item),
        ]
        for item in shown
    ]
    cores = ["PLANNED", "GRANTED", "ACTUAL"]
    return table(["REPLICA", "NODE", *cores, "MEMORY", "GPUS", "NETWORK", "PLACE"], rows)


def _memory(replica: ReplicaStatus) -> str:
    planned, actual = ranges(replica.mem_nodes), replica.mem_nodes_actual
    if actual is None or not planned or actual == replica.mem_nodes:
        return planned or "-"
    return f"{planned} (from {ranges(actual) or 'any'})"


def _of(planned: str, granted: str) -> str:
    return f"{planned} of {granted}" if planned else "-"


def _verdict(replica: ReplicaStatus) -> str:
    if replica.off_plan is not None:
        return paint("off plan", "bad")
    if replica.cores_actual is None:
        return "not seen"
    return paint("as planned, see note" if replica.remark else "as planned", "good")


def _per_node(replicas: list[ReplicaStatus]) -> str:
    counts = Counter(
        node for replica in replicas for node in replica.nodes or (replica.node,) if node
    )
    if not 0 < len(counts) <= 32:
        return ""
    return ", ".join(f"{node} {count}" for node, count in sorted(counts.items()))
