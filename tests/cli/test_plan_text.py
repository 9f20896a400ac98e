"""A plan as text for a person."""

from __future__ import annotations

from exaslurm.cli.plan_text import plan_text
from tests.render.plans import make_plan
from tests.render.test_scripts import CONTAINER


def test_a_container_is_named() -> None:
    assert "container: apptainer, /images/vllm.sif\n" in plan_text(make_plan(container=CONTAINER))
    assert "container" not in plan_text(make_plan())
