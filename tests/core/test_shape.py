"""Whether a model can be split and held: by its config, without loading it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from exaslurm.core.plan import EnginePlan, ModelPlan
from exaslurm.core.shape import (
    GIB,
    ModelShape,
    kv_per_rank_gib,
    misfits,
    weights_per_rank_gib,
)
from tests.tools import plans

# https://huggingface.co/meta-llama/Llama-3.1-70B/blob/main/config.json
LLAMA_70B: dict[str, Any] = {
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "torch_dtype": "bfloat16",
}
WEIGHTS = 141_107_412_992


def shape(**more: Any) -> ModelShape:
    return ModelShape.from_config({**LLAMA_70B, **more}, WEIGHTS)


def model(
    tensor: int = 1,
    pipeline: int = 1,
    *,
    nodes: int = 1,
    device: Any = "cuda",
    mem_gib: float = 64.0,
    **args: Any,
) -> ModelPlan:
    made = plans.make_model(
        engine=EnginePlan(
            kind="vllm",
            device=device,
            args={name.replace("_", "-"): value for name, value in args.items()},
        ),
        tensor=tensor,
        pipeline=pipeline,
        mem_gib=mem_gib,
    )
    return dataclasses.replace(made, nodes=nodes)


def keys(shape: ModelShape, plan: ModelPlan, gpu: float | None = None) -> list[str]:
    return [misfit.key for misfit in misfits(shape, plan, gpu_mem_gib=gpu)]


def test_a_config_is_read() -> None:
    found = shape()
    assert (found.attention_heads, found.kv_heads, found.layers) == (64, 8, 80)
    assert (found.head_dim, found.dtype) == (128, "bfloat16")
    nested = ModelShape.from_config({"text_config": LLAMA_70B, "torch_dtype": "float16"}, None)
    assert (nested.attention_heads, nested.dtype) == (64, "bfloat16")
    assert ModelShape.from_config({}, None) == ModelShape()
    assert ModelShape.from_config({"num_attention_heads": "x"}, None).attention_heads is None
    assert ModelShape.from_config({"n_head": 12, "n_embd": 768}, None).kv_heads == 12


@pytest.mark.parametrize(
    ("tensor", "pipeline", "key"),
    [
        (8, 1, None),
        (16, 1, None),  # each of 8 key-value heads on two ranks
        (6, 1, "parallel.tensor"),
        (128, 1, "parallel.tensor"),
        (1, 80, None),
        (1, 81, "parallel.pipeline"),
    ],
)
def test_heads_and_layers(tensor: int, pipeline: int, key: str | None) -> None:
    assert keys(shape(), model(tensor, pipeline)) == ([key] if key else [])


def test_key_value_heads() -> None:
    (misfit,) = misfits(shape(num_key_value_heads=6), model(4))
    assert "6 key-value heads" in misfit.reason
    assert keys(shape(num_key_value_heads=1), model(8)) == []


def test_what_is_not_known_is_not_checked() -> None:
    assert misfits(ModelShape(), model(7, 99), gpu_mem_gib=1.0) == []
    assert keys(shape(), model(2)) == []  # nobody knows how much memory GPUs have


def test_weights_must_fit_the_gpus() -> None:
    assert weights_per_rank_gib(shape(), model(2, 2)) == pytest.approx(WEIGHTS / 4 / GIB)
    (misfit,) = misfits(shape(), model(1), gpu_mem_gib=80.0)
    assert misfit.key == "parallel"
    assert "131 GiB of weights" in misfit.reason
    assert "at least 2 ranks" in misfit.reason
    assert keys(shape(), model(2), 80.0) == []
    assert keys(shape(), model(2), 64.0) == ["parallel"]
    assert keys(shape(), model(2, 2, nodes=2), 64.0) == []
    assert keys(shape(), model(2, gpu_memory_utilization=0.8), 80.0) == ["parallel"]


def test_one_full_request_must_fit_beside_them() -> None:
    """Key and value of 80 layers, 8 heads of 128 numbers, 2 bytes each: 320 KiB a token."""
    long = {"max_model_len": 131072}
    assert kv_per_rank_gib(shape(), model(1, **long)) == pytest.approx(40.0)
    assert kv_per_rank_gib(shape(), model(4, **long)) == pytest.approx(10.0)
    assert kv_per_rank_gib(shape(), model(16, **long)) == pytest.approx(5.0)
    assert kv_per_rank_gib(shape(), model(4, 2, **long)) == pytest.approx(5.0)
    assert kv_per_rank_gib(shape(), model(1, kv_cache_dtype="fp8", **long)) == pytest.approx(20.0)
    assert kv_per_rank_gib(shape(), model(1, max_model_len="auto")) is None
    assert keys(shape(), model(2), 80.0) == []
    assert keys(shape(), model(2, **long), 80.0) == ["parallel"]


@pytest.mark.parametrize("key", ["kv_lora_rank", "sliding_window", "layer_types"])
def test_other_kinds_of_cache_are_not_reckoned(key: str) -> None:
    assert kv_per_rank_gib(shape(**{key: 512}), model(1, max_model_len=4096)) is None


def test_memory_of_hosts() -> None:
    """Engines on CPUs hold their weights as float32, twice what the files have."""
    small = ModelShape.from_config(LLAMA_70B, 4 * GIB)
    assert keys(small, model(device="cpu", mem_gib=8.0)) == []
    assert keys(small, model(device="cpu", mem_gib=7.9)) == ["per_replica.mem_gib"]
    assert keys(small, model(device="cpu", mem_gib=4.0, dtype="bfloat16")) == []
    assert keys(small, model(2, nodes=2, device="cpu", mem_gib=4.0)) == []
    assert keys(small, model(2, device="cpu", mem_gib=4.0)) == ["per_replica.mem_gib"]
    cache = {"kv_cache_memory_bytes": 2 * GIB}
    assert keys(small, model(device="cpu", mem_gib=9.0, **cache)) == ["per_replica.mem_gib"]


def test_quantized_weights_stay_as_they_are() -> None:
    packed = ModelShape.from_config(
        {**LLAMA_70B, "quantization_config": {"bits": 4}, "torch_dtype": "float16"}, 4 * GIB
    )
    assert weights_per_rank_gib(packed, model(device="cpu")) == pytest.approx(4.0)
