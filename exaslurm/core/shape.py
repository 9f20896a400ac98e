"""Whether a model can be split and held as asked: heads, layers, memory. Pure.

The numbers are those of a Hugging Face ``config.json``; what a file does not say is not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from exaslurm.core.plan import ModelPlan

GIB = 1 << 30
# What vLLM 0.32 takes of a GPU's memory where nothing else is said, for weights, KV cache and
# what a forward pass needs.
GPU_SHARE = 0.92
_DTYPE_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}
_CPU_DTYPE = "float32"
# With any of these a layer's cache is not "key and value of every head for every token".
_OTHER_CACHES = ("kv_lora_rank", "sliding_window", "layer_types", "mamba_d_state", "ssm_cfg")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What a model's files say about it; None where they do not. ``weights_bytes`` is the size of
    the weight files, ``dtype`` what ``config.json`` says of their numbers, ``head_dim`` None also
    where the size of the KV cache does not follow from it."""

    attention_heads: int | None = None
    kv_heads: int | None = None
    layers: int | None = None
    head_dim: int | None = None
    dtype: str | None = None
    weights_bytes: int | None = None
    is_quantized: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any], weights_bytes: int | None) -> ModelShape:
        """The shape that a parsed ``config.json`` states (of a model with several parts, its
        language model's)."""
        text = config.get("text_config")
        part = text if isinstance(text, Mapping) else config
        heads = _count(part.get("num_attention_heads") or part.get("n_head"))
        hidden = _count(part.get("hidden_size") or part.get("n_embd"))
        head_dim = _count(part.get("head_dim"))
        if head_dim is None and heads and hidden and hidden % heads == 0:
            head_dim = hidden // heads
        if any(part.get(key) for key in _OTHER_CACHES):
            head_dim = None
        dtype = part.get("dtype") or part.get("torch_dtype") or config.get("torch_dtype")
        return cls(
            attention_heads=heads,
            kv_heads=_count(part.get("num_key_value_heads")) or heads,
            layers=_count(part.get("num_hidden_layers") or part.get("n_layer")),
            head_dim=head_dim,
            dtype=str(dtype).removeprefix("torch.") if dtype else None,
            weights_bytes=weights_bytes,
            is_quantized=bool(config.get("quantization_config")),
        )


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a model cannot be served as asked. ``key`` is the key of the spec, below the model's,
    that has to change."""

    key: str
    reason: str


def misfits(
    shape: ModelShape, model: ModelPlan, *, gpu_mem_gib: float | None = None
) -> list[Misfit]:
    """Every reason why replicas of ``model`` cannot work. ``gpu_mem_gib`` is the memory of the
    smallest GPU (None: not known)."""
    found = _split_misfits(shape, model)
    if model.engine.device == "cpu":
        found += _host_misfits(shape, model)
    elif gpu_mem_gib is not None:
        found += _gpu_misfits(shape, model, gpu_mem_gib)
    return found


def weights_per_rank_gib(shape: ModelShape, model: ModelPlan) -> float | None:
    """GiB of weights that one rank holds if they are shared evenly; None: not known."""
    if shape.weights_bytes is None:
        return None
    size = shape.weights_bytes * _growth(shape, model)
    return size / (model.tensor * model.pipeline) / GIB


def kv_per_rank_gib(shape: ModelShape, model: ModelPlan) -> float | None:
    """GiB of KV cache of one rank for a single request of the full length that the spec asks for;
    None: not known, or the length is left to the engine."""
    length = _whole(_option(model, "max-model-len"))
    if length is None or not (shape.layers and shape.kv_heads and shape.head_dim):
        return None
    cache = str(_option(model, "kv-cache-dtype") or "auto")
    number = 1 if cache.startswith("fp8") else _dtype_bytes(shape, model)
    # With more ranks than KV heads, each rank holds one of them.
    heads = max(1, shape.kv_heads // model.tensor)
    layers = -(-shape.layers // model.pipeline)
    return 2 * layers * heads * shape.head_dim * number * length / GIB


def _split_misfits(shape: ModelShape, model: ModelPlan) -> list[Misfit]:
    found = []
    tensor, pipeline = model.tensor, model.pipeline
    heads, kv_heads = shape.attention_heads, shape.kv_heads
    if heads is not None and heads % tensor:
        found.append(
            Misfit(
                "parallel.tensor",
                f"{tensor} asked, but the model has {heads} attention heads, which {tensor} "
                "ranks cannot share evenly",
            )
        )
    elif kv_heads is not None and kv_heads % tensor and tensor % kv_heads:
        found.append(
            Misfit(
                "parallel.tensor",
                f"{tensor} asked, but the model has {kv_heads} key-value heads: neither can "
                f"{tensor} ranks share them evenly nor each of them go to the same number of ranks",
            )
        )
    if shape.layers is not None and shape.layers < pipeline:
        found.append(
            Misfit(
                "parallel.pipeline",
                f"{pipeline} asked, but the model has {shape.layers} layers: a stage needs one",
            )
        )
    return found


def _gpu_misfits(shape: ModelShape, model: ModelPlan, gpu_mem_gib: float) -> list[Misfit]:
    weights = weights_per_rank_gib(shape, model)
    if weights is None:
        return []
    share = _number(_option(model, "gpu-memory-utilization")) or GPU_SHARE
    usable = gpu_mem_gib * share
    kv = kv_per_rank_gib(shape, model) or 0.0
    if weights + kv <= usable:
        return []
    ranks = model.tensor * model.pipeline
    fewest = next((n for n in range(ranks + 1, 1025) if weights * ranks / n + kv <= usable), None)
    more = f"; at least {fewest} ranks would be needed" if fewest and not kv else ""
    wanted = f" and {kv:.3g} of KV cache for one request of full length" if kv else ""
    return [
        Misfit(
            "parallel",
            f"each of {ranks} ranks holds {weights:.3g} GiB of weights{wanted}, but a GPU has "
            f"{gpu_mem_gib:.3g} GiB, of which the engine may use {usable:.3g}{more}",
        )
    ]


def _host_misfits(shape: ModelShape, model: ModelPlan) -> list[Misfit]:
    weights = weights_per_rank_gib(shape, model)
    if weights is None:
        return []
    local = model.ranks_per_node
    cache = _whole(_option(model, "kv-cache-memory-bytes"))
    kv = (kv_per_rank_gib(shape, model) or 0.0) if cache is None else cache / GIB
    need = local * (weights + kv)
    if need <= model.slot.mem_gib:
        return []
    return [
        Misfit(
            "per_replica.mem_gib",
            f"{model.slot.mem_gib:g} GiB on each node, but {local} ranks hold "
            f"{local * weights:.3g} GiB of weights"
            + (f" and {local * kv:.3g} of KV cache" if kv else "")
            + f" as {_dtype(shape, model) or 'they are stored'}",
        )
    ]


def _growth(shape: ModelShape, model: ModelPlan) -> float:
    """How much larger weights are in memory than in their files."""
    stored = _DTYPE_BYTES.get(shape.dtype or "")
    if shape.is_quantized or stored is None or _option(model, "quantization"):
        return 1.0
    return _dtype_bytes(shape, model) / stored


def _dtype(shape: ModelShape, model: ModelPlan) -> str | None:
    given = str(_option(model, "dtype") or "auto")
    if given != "auto":
        return given
    if model.engine.device == "cpu" and _option(model, "dtype") is None:
        return _CPU_DTYPE  # what engines on CPUs are told where the spec is silent
    # vLLM runs a float32 model in 16 bits where it is not told otherwise.
    return "float16" if shape.dtype == "float32" else shape.dtype


def _dtype_bytes(shape: ModelShape, model: ModelPlan) -> int:
    return _DTYPE_BYTES.get(_dtype(shape, model) or "", 2)


def _option(model: ModelPlan, name: str) -> Any:
    for key, value in model.engine.args.items():
        if key.lstrip("-").replace("_", "-") == name:
            return value
    return None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number >= 1 else None


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None
