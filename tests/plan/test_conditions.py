"""Conditions when the plan is made: mistakes, kinds that cannot, features asked of Slurm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from exaslurm.core.plan import Plan
from exaslurm.plan.conditions import with_features

Options = Callable[[Plan, int], dict[str, str | None]]

KINDS = """\
node_kinds:
  login: {partition: serial, cpus: 32, mem_gib: 128}
  gpu: {partition: gpus, cpus: 64, mem_gib: 512, gpus: 4}
  fat: {partition: gpus, cpus: 64, mem_gib: 2048, gpus: 4, constraint: fat}
"""


def models(*constraints: str, second: tuple[str, ...] | None = None) -> str:
    text = f"models:\n  - {{name: m, source: {{package: p}}, constraints: {list(constraints)}}}\n"
    if second is not None:
        text += f"  - {{name: k, source: {{package: p}}, constraints: {list(second)}}}\n"
    return text


def test_a_mistake_is_told_with_line_and_column(desk: Any) -> None:
    (line,) = desk.refusal(models("kind == gpu", "ib_gps >= 100"))
    assert line == (
        "/specs/hello.yaml:5: models[0].constraints[1]: column 1: there is no fact 'ib_gps'; did "
        "you mean ib_gbps? (in 'ib_gps >= 100')"
    )


def test_a_mistake_in_a_long_condition_stays_short(desk: Any) -> None:
    (line,) = desk.refusal(models("(" * 5000))
    assert "at most 200 words" in line
    assert len(line) < 400


def test_what_no_kind_can_meet(desk: Any) -> None:
    (line,) = desk.refusal(models("kind == fat"))
    assert line.endswith("no node of the workers can meet it: kind == fat (kind is gpu)")
    (line,) = desk.refusal(models("gpus >= 1") + "workers: {kind: login, nodes: 1}\n")
    assert line.endswith("no node of the workers can meet it: gpus >= 1 (gpus is 0)")


def test_a_model_goes_to_the_kinds_that_can(desk: Any) -> None:
    workers = "workers: [{kind: gpu, nodes: 2}, {kind: fat, nodes: 1}]\n"
    plan = desk.plan(
        "models: [{name: m, source: {package: p}, constraints: [kind == fat], "
        "shards: [{name: a, replicas: 4}]}]\n" + workers,
        KINDS,
    )
    assert [part.gpus_per_node for part in plan.cells[0].components] == [0, 0, 4]
    assert plan.models[0].constraints == ("kind == fat",)
    (line,) = desk.refusal(
        "models: [{name: m, source: {package: p}, constraints: [kind == fat], "
        "shards: [{name: a, replicas: 5}]}]\n" + workers,
        KINDS,
    )
    assert "5 asked, but only 4 have room" in line


@pytest.mark.parametrize(
    ("spec", "constraint"),
    [
        (models("feature('nvme')"), "nvme"),
        (models("feature == nvme and ib_gbps >= 100", "feature in [a, b]"), "nvme&(a|b)"),
        (models("feature in [a, b]"), "a|b"),
        # Not for all nodes, not in Slurm's words, not a name for a script.
        (models("feature == nvme", second=()), None),
        (models("feature == nvme", second=("feature == nvme",)), "nvme"),
        (models("not feature == nvme"), None),
        (models("feature == nvme or numa_local"), None),
        (models("feature == 'a b;c'"), None),
        (models("ib_gbps >= 100"), None),
    ],
)
def test_features_are_asked_of_slurm(
    desk: Any, options: Options, spec: str, constraint: str | None
) -> None:
    plan = desk.plan(spec)
    assert options(plan, 1).get("constraint") == constraint
    assert "constraint" not in options(plan, 0)


@pytest.mark.parametrize(
    ("own", "features", "value"),
    [
        (None, (), None),
        ("fat", (), "fat"),
        ("fat", ("nvme",), "fat&nvme"),
        ("nvme", ("nvme",), "nvme"),
        ("a|b", ("nvme", "c|d"), "(a|b)&nvme&(c|d)"),
        ("[a*2&b*1]", ("nvme",), "[a*2&b*1]"),
    ],
)
def test_beside_the_sites_own(
    own: str | None, features: tuple[str, ...], value: str | None
) -> None:
    assert with_features(own, features) == value
