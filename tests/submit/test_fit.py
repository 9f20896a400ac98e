"""A model that cannot work as the spec asks is refused where the spec says so, before any job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exaslurm.errors import PlanError
from exaslurm.submit.submit import make_plan_for

SPEC = """\
schema: exaslurm/v1
deployment: hello
site: local
models:
  - name: m
    source: {{path: {path}}}
    parallel:
      tensor: {tensor}
"""


def plan(directory: Path, tensor: int) -> None:
    text = SPEC.format(path=directory, tensor=tensor)
    make_plan_for(Path("/specs/hello.yaml"), text=text, environ={"HOME": str(directory)})


def test_heads_decide_before_anything_runs(tmp_path: Path) -> None:
    config = {"num_attention_heads": 9, "num_hidden_layers": 30, "hidden_size": 576}
    (tmp_path / "config.json").write_text(json.dumps(config))
    plan(tmp_path, 3)
    with pytest.raises(PlanError) as caught:
        plan(tmp_path, 2)
    message = str(caught.value)
    assert message.startswith("/specs/hello.yaml:8: models[0].parallel.tensor: 2 asked")
    assert "9 attention heads" in message


def test_a_model_that_is_elsewhere_is_left_to_the_nodes(tmp_path: Path) -> None:
    plan(tmp_path / "not-here", 2)
