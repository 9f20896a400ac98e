"""What one replica gets on its node, and whether any node can give it."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

from exaslurm.core.plan import (
    Device,
    EnginePlan,
    ModelPlan,
    ModelSource,
    ShardPlan,
    SlotTemplate,
)
from exaslurm.core.ports import MAX_ENGINES
from exaslurm.plan.cells import Group
from exaslurm.plan.context import Findings, PlanContext
from exaslurm.plan.scaling import most_replicas
from exaslurm.plan.split import check_split, device_of, nodes_of
from exaslurm.site.paths import UnknownVariableError, resolve
from exaslurm.spec.model import Model, Source, Spec

# Where neither spec nor site says how much memory a replica or a node has.
_FALLBACK_MEM_GIB = 8.0
# A simulated engine is one small process, whatever the site gives to real ones.
_SIMULATED_MEM_GIB = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """What of each node is not shared out among replicas. Where a node of the cell also carries
    its head, that is the head's part; a replica that asks for more may still fit on the others,
    which keep ``service_gib`` only."""

    cores: int
    mem_gib: float
    service_gib: float


def model_plan(
    spec: Spec,
    index: int,
    groups: Sequence[Group],
    reserve: Reserve,
    context: PlanContext,
    findings: Findings,
) -> ModelPlan:
    """The plan of ``spec.models[index]``."""
    model, key = spec.models[index], f"models[{index}]"
    device = device_of(model, groups)
    nodes = nodes_of(model, groups)
    may_be_split = check_split(spec, key, model, groups, findings)
    gpus = _gpus(model, device, nodes)
    density = _per_node(spec, groups)
    slot = SlotTemplate(
        gpus=gpus,
        cores=model.per_replica.cores
        or min(_cores(group, gpus, density, reserve.cores) for group in groups),
        mem_gib=model.per_replica.mem_gib
        or min(_mem_gib(model, group, gpus, density, reserve.mem_gib) for group in groups),
    )
    if model.max_replicas_per_node > MAX_ENGINES:
        findings.add(
            spec.problem(
                f"{key}.max_replicas_per_node",
                f"{model.max_replicas_per_node} asked, but a node has ports for {MAX_ENGINES}",
            )
        )
    for place, shard in enumerate(model.shards):
        if shard.lora is not None and model.engine.kind == "vllm":
            findings.add(
                spec.problem(
                    f"{key}.shards[{place}].lora",
                    "LoRA adapters are not served by this version: remove it, or serve a model "
                    "into which the adapter is merged",
                )
            )
    if may_be_split and _check_gpus(spec, key, model, nodes, gpus, groups, findings):
        _check_room(spec, key, slot, groups, reserve.service_gib, findings)
    return ModelPlan(
        name=model.name,
        source=_source(spec, key, model.source, context, findings),
        engine=EnginePlan(
            kind=model.engine.kind,
            device=device,
            args=dict(model.engine.args),
            extra_args=model.engine.extra_args,
            env=dict(model.engine.env),
        ),
        tensor=model.parallel.tensor,
        pipeline=model.parallel.pipeline,
        nodes=nodes,
        executor=model.parallel.executor,
        slot=slot,
        max_replicas_per_node=model.max_replicas_per_node,
        shards=tuple(
            ShardPlan(
                name=shard.name,
                served_names=served_names(model.name, shard.name, first=place == 0),
                lora=None
                if shard.lora is None
                else spec_path(spec, f"{key}.shards[{place}].lora", shard.lora, context, findings),
                priority=shard.priority,
                weight=shard.weight,
            )
            for place, shard in enumerate(model.shards)
        ),
        constraints=model.constraints,
    )


def served_names(model: str, shard: str, *, first: bool) -> tuple[str, ...]:
    """The names that clients may use: the first shard of a model answers to the model too."""
    full = f"{model}:{shard}"
    return (model, full) if first else (full,)


def _gpus(model: Model, device: Device, nodes: int) -> int:
    if model.per_replica.gpus is not None:
        return model.per_replica.gpus
    if device == "cpu" or model.engine.kind == "simulated":
        return 0
    return model.parallel.tensor * model.parallel.pipeline // nodes


def _per_node(spec: Spec, groups: Sequence[Group]) -> int:
    """Replicas (of one over several nodes: its parts) on a node if all were spread evenly,
    rounded up."""
    replicas = sum(
        most_replicas(spec, shard) * nodes_of(model, groups)
        for model in spec.models
        for shard in model.shards
    )
    return -(-replicas // sum(group.nodes for group in groups))


def _share(gpus: int, group: Group, density: int) -> float:
    """The part of a node that one replica may use, by its GPUs, else by the number of replicas."""
    if gpus and group.kind.known_gpus:
        return min(1.0, gpus / group.kind.known_gpus)
    return 1.0 / max(1, density)


def _cores(group: Group, gpus: int, density: int, reserve: int) -> int:
    if group.kind.per_replica.cores is not None:
        return group.kind.per_replica.cores
    cores = group.kind.known_cores
    if cores is None:
        return 1
    return max(1, int((cores - reserve) * _share(gpus, group, density) + 1e-9))


def _mem_gib(model: Model, group: Group, gpus: int, density: int, reserve: float) -> float:
    if model.engine.kind == "simulated":
        return _SIMULATED_MEM_GIB
    if group.kind.per_replica.mem_gib is not None:
        return group.kind.per_replica.mem_gib
    if group.kind.mem_gib is None:
        return _FALLBACK_MEM_GIB
    quarters = int((group.kind.mem_gib - reserve) * _share(gpus, group, density) * 4 + 1e-9)
    return max(1, quarters) / 4


def _check_gpus(
    spec: Spec,
    key: str,
    model: Model,
    nodes: int,
    gpus: int,
    groups: Sequence[Group],
    findings: Findings,
) -> bool:
    """Report what GPUs cannot do; false if something was reported."""
    device = device_of(model, groups)
    ranks = model.parallel.tensor * model.parallel.pipeline // nodes
    asked_key = f"{key}.per_replica.gpus"
    if model.per_replica.gpus is None:
        asked_key = f"{key}.parallel.{'tensor' if model.parallel.tensor > 1 else 'pipeline'}"
    if device != "cpu" and model.engine.kind == "vllm" and gpus != ranks:
        findings.add(
            spec.problem(
                f"{key}.per_replica.gpus",
                f"{gpus} asked, but parallel.tensor x parallel.pipeline is {ranks}"
                f"{' on each node' if nodes > 1 else ''}: one GPU each",
            )
        )
        return False
    known = [group for group in groups if group.kind.known_gpus is not None]
    most = max((group.kind.known_gpus or 0 for group in known), default=0)
    if len(known) < len(groups) or gpus <= most:
        return True
    asked = f"{gpus} asked"
    if ranks > 1 and model.per_replica.gpus is None:
        asked = f"tensor x pipeline asks for {gpus} GPUs"
    elif model.per_replica.gpus is None:
        asked_key = f"{key}.engine.device"
        asked = f"{device} asks for 1 GPU a replica"
    findings.add(spec.problem(asked_key, f"{asked}, {_kinds(groups)} {most}"))
    return False


def _check_room(
    spec: Spec,
    key: str,
    slot: SlotTemplate,
    groups: Sequence[Group],
    reserve_gib: float,
    findings: Findings,
) -> None:
    """Report what no single node can give."""
    cores = [group.kind.known_cores for group in groups]
    most_cores = max((count for count in cores if count is not None), default=0)
    if None not in cores and slot.cores > most_cores:
        findings.add(
            spec.problem(
                f"{key}.per_replica.cores", f"{slot.cores} asked, {_kinds(groups)} {most_cores}"
            )
        )
    mem = [group.kind.mem_gib for group in groups]
    most_mem = max((gib for gib in mem if gib is not None), default=0.0) - reserve_gib
    if None not in mem and slot.mem_gib > most_mem:
        findings.add(
            spec.problem(
                f"{key}.per_replica.mem_gib",
                f"{slot.mem_gib:g} asked, {_kinds(groups)} {most_mem:g} "
                f"({reserve_gib:g} GiB more are for agent and Ray)",
            )
        )


def _kinds(groups: Sequence[Group]) -> str:
    names = list(dict.fromkeys(group.kind_name for group in groups))
    if len(names) == 1:
        return f"node kind {names[0]} has"
    return f"node kinds {', '.join(names)} have at most"


def _source(
    spec: Spec, key: str, source: Source | None, context: PlanContext, findings: Findings
) -> ModelSource:
    if source is None:
        return ModelSource(kind="none", value="")
    if source.path is not None:
        path = spec_path(spec, f"{key}.source.path", source.path, context, findings)
        return ModelSource(kind="path", value=path, revision=source.revision, sha256=source.sha256)
    kind, value = ("hf", source.hf) if source.hf is not None else ("package", source.package)
    return ModelSource(
        kind="hf" if kind == "hf" else "package",
        value=value or "",
        revision=source.revision,
        sha256=source.sha256,
    )


def spec_path(spec: Spec, key: str, text: str, context: PlanContext, findings: Findings) -> str:
    """A path of the spec, with its variables replaced."""
    try:
        path = resolve(text, user=context.user, home=context.home)
    except UnknownVariableError as error:
        findings.add(spec.problem(key, f"{error} (got {text!r})"))
        return text
    return posixpath.normpath(posixpath.join(spec.directory, path))
