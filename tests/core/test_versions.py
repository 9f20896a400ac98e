from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from exaslurm.core.plan import ModelSource, Plan
from exaslurm.core.versions import differing, version_of, versions_of
from tests.status.conftest import make_plan


def model(plan: Plan, **changes: Any) -> Plan:
    """The plan with another first model."""
    first, *others = plan.models
    return dataclasses.replace(plan, models=(dataclasses.replace(first, **changes), *others))


def of(plan: Plan) -> str:
    first = plan.models[0]
    return version_of(plan, first.name, first.shards[0].name)


def test_what_makes_another_version() -> None:
    plan = make_plan()
    first = plan.models[0]
    engine, source, shard = first.engine, first.source, first.shards[0]
    others = [
        model(plan, source=dataclasses.replace(source, value="another")),
        model(plan, source=dataclasses.replace(source, sha256="0" * 64)),
        model(plan, engine=dataclasses.replace(engine, args={"max-model-len": 7})),
        model(plan, engine=dataclasses.replace(engine, extra_args=("--x",))),
        model(plan, engine=dataclasses.replace(engine, env={"A": "1"})),
        model(plan, shards=(dataclasses.replace(shard, lora="/l"),)),
        model(plan, tensor=2),
        dataclasses.replace(plan, node=dataclasses.replace(plan.node, python="/other/python")),
    ]
    found = [of(other) for other in others]
    assert of(plan) not in found
    assert len(set(found)) == len(found)


def test_what_makes_none() -> None:
    plan = make_plan()
    first = plan.models[0]
    same = [
        make_plan(cells=3),
        dataclasses.replace(plan, poll_floor_s=3.0),
        model(plan, slot=dataclasses.replace(first.slot, cores=7)),
        model(plan, shards=(dataclasses.replace(first.shards[0], weight=2.0),)),
    ]
    assert {of(other) for other in same} == {of(plan)}


@pytest.mark.parametrize(
    ("revision", "start"),
    [("v2.1", "v2.1-"), ("refs/pr 7", "refs-pr-7-"), ("f" * 40, "f" * 16 + "-"), ("//", "")],
)
def test_the_revision_can_be_read(revision: str, start: str) -> None:
    plan = make_plan()
    source = ModelSource(kind="hf", value="a/b", revision=revision)
    found = of(model(plan, source=source))
    assert found.startswith(start)
    assert len(found) == len(start) + 8


def test_names_whose_version_differs() -> None:
    plan = make_plan()
    other = model(plan, source=ModelSource(kind="path", value="/new"))
    names = versions_of(plan)
    assert differing(plan, plan) == {}
    assert differing(plan, other) == {name: (old, of(other)) for name, old in names.items()}
    renamed = model(other, shards=(dataclasses.replace(other.models[0].shards[0],
                                                       served_names=("brand-new",)),))  # fmt: skip
    assert differing(plan, renamed) == {}
