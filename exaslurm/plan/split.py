"""Over how many nodes a replica goes.

The ranks of a tensor-parallel group exchange data in every layer: they stay within one node, whose
GPUs have fast links. A pipeline hands over once a stage: its stages may lie on several nodes. So a
replica with more ranks than a node has GPUs takes as few nodes as hold whole stages; who wants
otherwise says ``parallel.nodes``.
"""

from __future__ import annotations

from collections.abc import Sequence

from exaslurm.core.plan import Device, ModelPlan
from exaslurm.plan.cells import Group
from exaslurm.plan.context import Findings
from exaslurm.spec.model import Model, Spec


def device_of(model: Model, groups: Sequence[Group]) -> Device:
    """What the engines of a model run on."""
    kind = groups[0].kind
    return model.engine.device or kind.device or ("cuda" if kind.gpus else "cpu")


def nodes_of(model: Model, groups: Sequence[Group]) -> int:
    """Nodes of one replica; 1 where no number of nodes would do (``check_split`` says why)."""
    given = model.parallel.nodes
    ranks = model.parallel.tensor * model.parallel.pipeline
    if given is not None:
        return given if ranks % given == 0 else 1
    most = _most_gpus(groups)
    if not _one_gpu_each(model, groups) or most is None or ranks <= most:
        return 1
    for nodes in range(2, model.parallel.pipeline + 1):
        local, rest = divmod(ranks, nodes)
        if rest == 0 and local <= most and local % model.parallel.tensor == 0:
            return nodes
    return 1


def check_split(
    spec: Spec, key: str, model: Model, groups: Sequence[Group], findings: Findings
) -> bool:
    """Report how a replica cannot be split; false if something was reported."""
    before = len(findings.problems)
    nodes = nodes_of(model, groups)
    _check_nodes(spec, f"{key}.parallel", model, groups, findings)
    room = sum(min(group.nodes, group.nodes_per_cell) for group in groups)
    if nodes > room:
        asked = f"{key}.parallel.{'pipeline' if model.parallel.nodes is None else 'nodes'}"
        findings.add(
            spec.problem(
                asked, f"a replica takes {nodes} nodes of one cell, and a cell has {room} at most"
            )
        )
    if model.parallel.executor == "ray":
        _check_ray(spec, f"{key}.parallel.executor", model, groups, nodes, findings)
    return len(findings.problems) == before


def check_ray(spec: Spec, models: Sequence[ModelPlan], ray: bool, findings: Findings) -> None:
    """Report which models need the Ray that cells do not bring up. ``ray``: they do."""
    for index, model in enumerate(models):
        if model.executor == "ray" and model.nodes > 1 and not ray:
            findings.add(
                spec.problem(
                    f"models[{index}].parallel.executor",
                    "ray asked, but cells bring up no Ray here (`ray` of the spec or the site)",
                )
            )


def _check_nodes(
    spec: Spec, key: str, model: Model, groups: Sequence[Group], findings: Findings
) -> None:
    tensor, given = model.parallel.tensor, model.parallel.nodes
    ranks = tensor * model.parallel.pipeline
    if given is not None:
        local, rest = divmod(ranks, given)
        if rest:
            findings.add(
                spec.problem(
                    f"{key}.nodes",
                    f"{given} asked, but tensor x pipeline is {ranks}: not the same number on each",
                )
            )
        elif local % tensor and tensor % local:
            findings.add(
                spec.problem(
                    f"{key}.nodes",
                    f"with {given} nodes each has {local} ranks: neither whole tensor-parallel "
                    f"groups of {tensor} nor an equal part of one",
                )
            )
        elif local < tensor:
            findings.note(
                f"model {model.name}: its tensor-parallel groups of {tensor} lie on "
                f"{tensor // local} nodes each, so every layer waits for the network between them"
            )
        return
    most = _most_gpus(groups)
    if _one_gpu_each(model, groups) and most and tensor > most:
        findings.add(
            spec.problem(
                f"{key}.tensor",
                f"{tensor} asked, but a node has {most} GPUs at most, and a tensor-parallel group "
                "belongs on one node: use a smaller one and a longer pipeline, or say over how "
                "many nodes it shall go (parallel.nodes)",
            )
        )


def _check_ray(
    spec: Spec,
    key: str,
    model: Model,
    groups: Sequence[Group],
    nodes: int,
    findings: Findings,
) -> None:
    if device_of(model, groups) == "cpu" or model.engine.kind != "vllm":
        findings.add(spec.problem(key, "ray asked, but vLLM's Ray executor knows no CPUs: use mp"))
    elif nodes == 1:
        findings.note(
            f"model {model.name}: parallel.executor has no effect, a replica fits on one node"
        )
    else:
        findings.note(
            f"model {model.name}: with executor ray, Ray and not exaslurm chooses the GPUs of the "
            "workers; nobody has run this way on GPUs yet"
        )


def _one_gpu_each(model: Model, groups: Sequence[Group]) -> bool:
    """Whether each rank takes a GPU of its own."""
    return model.engine.kind == "vllm" and device_of(model, groups) != "cpu"


def _most_gpus(groups: Sequence[Group]) -> int | None:
    """GPUs of the largest node, None where nobody knows."""
    known = [group.kind.known_gpus for group in groups if group.kind.known_gpus is not None]
    return max(known) if known and len(known) == len(groups) else None
