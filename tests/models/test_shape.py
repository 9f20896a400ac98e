"""Sizes of models as their directories tell them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exaslurm.agent.fit import check_model
from exaslurm.core.plan import EnginePlan, ModelSource
from exaslurm.errors import PreflightFailed
from exaslurm.models.shape import shape_of_directory, shape_of_source
from tests.tools import plans

CONFIG = {"num_attention_heads": 9, "num_hidden_layers": 30, "hidden_size": 576}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model-1.safetensors").write_bytes(b"x" * 1000)
    (tmp_path / "model-2.safetensors").write_bytes(b"x" * 24)
    (tmp_path / "pytorch_model.bin").write_bytes(b"the same again")
    return tmp_path


def test_a_directory(directory: Path) -> None:
    shape = shape_of_source(ModelSource(kind="path", value=str(directory)))
    assert shape is not None
    assert (shape.attention_heads, shape.layers, shape.head_dim) == (9, 30, 64)
    assert shape.weights_bytes == 1024


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100000, '{"a": NaN'])
def test_a_config_that_cannot_be_read_says_nothing(directory: Path, text: str) -> None:
    (directory / "config.json").write_text(text)
    assert shape_of_directory(directory) is None


def test_models_that_are_elsewhere_say_nothing(tmp_path: Path) -> None:
    assert shape_of_source(ModelSource(kind="path", value=str(tmp_path / "no"))) is None
    assert shape_of_source(ModelSource(kind="hf", value="org/model")) is None
    assert shape_of_source(ModelSource(kind="package", value="no-such-package-here")) is None


def test_what_cannot_work_is_not_started(directory: Path) -> None:
    engine = EnginePlan(kind="vllm", device="cuda")
    fits = plans.make_model(engine=engine, tensor=3)
    check_model(fits, directory, 80.0)
    with pytest.raises(PreflightFailed, match=r"parallel.tensor: 2 asked, but the model has 9 att"):
        check_model(plans.make_model(engine=engine, tensor=2), directory, None)
    check_model(plans.make_model(tensor=2), directory, None)  # simulated
