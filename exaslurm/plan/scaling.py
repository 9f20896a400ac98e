"""How many replicas of each shard a plan has room for, and when they come and go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from exaslurm.core.plan import AutoscalePlan, ModelPlan, Plan, ShardScale
from exaslurm.core.sharing import at_start, share
from exaslurm.plan.context import Findings
from exaslurm.spec.model import Autoscale, Shard, Spec

# vLLM's default (0.32) of requests that an engine works on at a time.
_VLLM_CAPACITY = 256


def most_replicas(spec: Spec, shard: Shard) -> int:
    """How many replicas of a shard there may be at a time."""
    scale = spec.autoscale
    if scale is None:
        return shard.replicas
    return shard.max or scale.max or max(shard.replicas, shard.min or scale.min)


def scaling(spec: Spec, models: Sequence[ModelPlan], findings: Findings) -> AutoscalePlan | None:
    """When replicas come and go; what cannot be is reported."""
    scale = spec.autoscale
    if scale is None:
        _note_unused(spec, findings)
        return None
    shards = {}
    for index, (model, plan) in enumerate(zip(spec.models, models, strict=True)):
        capacity = _capacity(spec, scale, plan)
        for place, shard in enumerate(model.shards):
            _check(spec, scale, f"models[{index}].shards[{place}]", shard, findings)
            shards[f"{model.name}:{shard.name}"] = ShardScale(
                start=shard.replicas,
                least=scale.min if shard.min is None else shard.min,
                most=most_replicas(spec, shard),
                capacity=capacity,
                ttft_p95_s=model.slo.ttft_p95_s if model.slo is not None else None,
            )
        room = sum(most_replicas(spec, shard) for shard in model.shards)
        if room < scale.min_per_model:
            text = f"{scale.min_per_model} asked, but model {model.name} has {room} at most"
            findings.add(spec.problem("autoscale.min_per_model", text))
    return AutoscalePlan(
        shards=shards,
        up_at=scale.up_at,
        down_at=scale.down_at,
        cooldown_s=scale.cooldown_s,
        least_per_model=scale.min_per_model,
        idle_s=scale.idle_s if scale.scale_to_zero else None,
    )


def _check(spec: Spec, scale: Autoscale, key: str, shard: Shard, findings: Findings) -> None:
    most = most_replicas(spec, shard)
    least = scale.min if shard.min is None else shard.min
    if least > most:
        where = f"{key}.min" if shard.min is not None else f"{key}.max"
        findings.add(spec.problem(where, f"at least {least} asked, but at most {most}"))
    elif not least <= shard.replicas <= most:
        text = f"{shard.replicas} at the beginning, but {least} at least and {most} at most"
        findings.add(spec.problem(f"{key}.replicas", text))
    if least == 0 and not scale.scale_to_zero:
        text = "0 asked: with autoscale.scale_to_zero a shard without requests has no replica"
        findings.add(spec.problem(f"{key}.min", text))


def _capacity(spec: Spec, scale: Autoscale, model: ModelPlan) -> int:
    """Requests that one replica works on at a time."""
    asked = model.engine.args.get("max-num-seqs")
    known = asked if isinstance(asked, int) and asked > 0 else _VLLM_CAPACITY
    limit = spec.gateway.limits.max_in_flight_per_replica
    return scale.requests_per_replica or limit or known


def _note_unused(spec: Spec, findings: Findings) -> None:
    """Tell which keys mean nothing without autoscale."""
    for index, model in enumerate(spec.models):
        if model.slo is not None and model.slo.ttft_p95_s is not None:
            findings.note(f"models[{index}].slo.ttft_p95_s: nothing acts on it without autoscale")
        for place, shard in enumerate(model.shards):
            for key in ("min", "max"):
                if getattr(shard, key) is not None:
                    where = f"models[{index}].shards[{place}].{key}"
                    findings.note(f"{where}: nothing acts on it without autoscale")


def scale_notes(plan: Plan) -> Iterator[str]:
    """What a plan provides for, in a sentence for each shard, and which cells it begins with."""
    scale = plan.autoscale
    if scale is None:
        return
    for name, shard in scale.shards.items():
        least = f"{shard.least} at least"
        if scale.idle_s is not None:
            least = f"none after {scale.idle_s:g} s without a request, else {max(1, shard.least)}"
        yield (
            f"autoscale: room for {shard.most} replicas of {name}; {shard.start} to begin with, "
            f"{least}"
        )
    if plan.layout == "local":
        yield "autoscale: without Slurm nothing is scaled by itself ('exaslurm scale' does it)"
    first, cells = len(share(plan, at_start(plan), frozenset())), len(plan.cells)
    if first < cells:
        yield f"autoscale: {first} of {cells} cells are submitted at first, others when needed"
