"""Whether models can be split and held as the spec asks, as far as the login node can know.

It knows of a model whose files it can read. Of others the nodes find out, before an engine starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from exaslurm.core.plan import ModelPlan
from exaslurm.core.shape import ModelShape, misfits
from exaslurm.plan.context import Findings
from exaslurm.spec.model import Spec


def check_fit(
    spec: Spec,
    models: Sequence[ModelPlan],
    shapes: Mapping[str, ModelShape],
    findings: Findings,
) -> None:
    """Report which models cannot work. ``shapes``: what is known, by the models' names."""
    for index, model in enumerate(models):
        shape = shapes.get(model.name)
        if shape is None or model.engine.kind != "vllm":
            continue
        for misfit in misfits(shape, model):
            findings.add(spec.problem(f"models[{index}].{misfit.key}", misfit.reason))
