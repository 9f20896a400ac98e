"""A plan as text for a person."""

from __future__ import annotations

from collections import Counter

from exaslurm.cli.output import paint, table
from exaslurm.core.plan import CellPlan, ComponentPlan, Plan

_LAYOUTS = {
    "het": "one heterogeneous job a cell",
    "single": "one ordinary job a cell",
    "local": "this host, without Slurm",
}


def plan_text(plan: Plan) -> str:
    """Deployment, models and cells; equal cells are shown once."""
    name = paint(plan.deployment, "bold")
    lines = [
        f"{name} on site {plan.site} ({_LAYOUTS[plan.layout]}), plan {plan.hash[:12]}",
        "",
        _models(plan),
        "",
        _cells(plan),
        "",
        *_container(plan),
        f"router: {_gateway(plan)}",
        *(f"spread: {sentence}" for sentence in plan.spread),
        *(f"note: {note}" for note in plan.notes),
    ]
    return "\n".join(lines)


def _container(plan: Plan) -> list[str]:
    container = plan.node.container
    return [] if container is None else [f"container: {container.runtime}, {container.image}"]


def _models(plan: Plan) -> str:
    counts: Counter[tuple[str, str]] = Counter()
    for cell in plan.cells:
        for item in cell.replica_sets:
            counts[item.model, item.shard] += item.count
    rows = []
    for model in plan.models:
        slot = model.slot
        rows += [
            [
                model.name,
                shard.name,
                str(counts[model.name, shard.name]),
                f"{model.engine.kind}/{model.engine.device}",
                (f"{model.nodes} nodes x " if model.nodes > 1 else "")
                + ", ".join(_resources(slot.cores, "core", slot.mem_gib, slot.gpus)),
                ", ".join(shard.served_names),
            ]
            for shard in model.shards
        ]
    return table(["MODEL", "SHARD", "REPLICAS", "ENGINE", "EACH", "ANSWERS TO"], rows)


def _cells(plan: Plan) -> str:
    kinds: list[tuple[CellPlan, list[str]]] = []
    for cell in plan.cells:
        for first, names in kinds:
            if first.components == cell.components and _counts(first) == _counts(cell):
                names.append(cell.name)
                break
        else:
            kinds.append((cell, [cell.name]))
    rows = []
    for cell, names in kinds:
        label = names[0] if len(names) == 1 else f"{names[0]}..{names[-1]} ({len(names)})"
        for component in cell.components:
            rows.append(
                [label, component.role, component.kind, str(component.nodes), _asked(component)]
            )
            label = ""
    return table(["CELL", "ROLE", "KIND", "NODES", "ASKED FOR"], rows)


def _counts(cell: CellPlan) -> list[tuple[str, str, int]]:
    return [(item.model, item.shard, item.count) for item in cell.replica_sets]


def _asked(component: ComponentPlan) -> str:
    mem_gib = (component.mem_mib_per_node or 0) / 1024
    parts = _resources(component.cpus_per_node, "CPU", mem_gib, component.gpus_per_node)
    given = dict(component.directives)
    shown = ("partition", "account", "qos", "time", "constraint", "reservation")
    parts += [f"{option} {given[option]}" for option in shown if given.get(option)]
    return ", ".join(parts)


def _resources(cpus: int, word: str, mem_gib: float, gpus: int) -> list[str]:
    parts = [f"{cpus} {word}" + ("s" if cpus != 1 else "")]
    parts += [f"{mem_gib:g} GiB"] if mem_gib else []
    parts += [f"{gpus} GPU" + ("s" if gpus != 1 else "")] if gpus else []
    return parts


def _gateway(plan: Plan) -> str:
    gateway = plan.gateway
    where = {"login": "on the host of submit", "service": "on a service host", "job": "in a job"}
    port = str(gateway.port) if gateway.port else "first free port"
    start = (
        "started by submit"
        if gateway.start_with_submit
        else (f"start it with: exaslurm gateway {plan.deployment}")
    )
    if gateway.job is not None:
        start += f", {gateway.job.spares} spare(s)"
    return f"{where[gateway.home]}, {gateway.bind}, {port}; {start}"
