"""Whether a model that is there now can work as the plan wants it: the last look before a start.

An engine would find out after minutes of loading, on every node, again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from exaslurm.core.facts import GpuFact
from exaslurm.core.plan import ModelPlan
from exaslurm.core.shape import misfits
from exaslurm.errors import PreflightFailed
from exaslurm.models.shape import shape_of_directory


def check_model(model: ModelPlan, directory: Path, gpu_mem_gib: float | None) -> None:
    """PreflightFailed with every reason why it cannot; reads ``config.json``. ``gpu_mem_gib``: of
    the smallest GPU of the node, None if nobody knows."""
    if model.engine.kind != "vllm":
        return
    shape = shape_of_directory(directory)
    found = [] if shape is None else misfits(shape, model, gpu_mem_gib=gpu_mem_gib)
    if found:
        reasons = "; ".join(f"{misfit.key}: {misfit.reason}" for misfit in found)
        raise PreflightFailed(
            f"model {model.name!r} cannot work as the spec asks: {reasons}",
            remedy="change these keys of the model in the spec, and submit again",
        )


def smallest_gpu_gib(gpus: Sequence[GpuFact]) -> float | None:
    """Memory of the smallest GPU; None where one does not tell, or there is none."""
    known = [gpu.mem_mib for gpu in gpus if gpu.mem_mib is not None]
    return min(known) / 1024 if known and len(known) == len(gpus) else None
