"""A person says how many replicas there shall be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from exaslurm.api.scale import scale, wanted_now
from exaslurm.core.codec import dumps
from exaslurm.core.plan import AutoscalePlan, ShardScale
from exaslurm.core.submission import Submission
from exaslurm.errors import DeploymentError, UserError
from exaslurm.rundir import RunDir
from exaslurm.submit.records import write_desired, write_submission
from tests.tools import plans

ENVIRON = {"USER": "exa1", "HOME": "/home/exa1"}


def deployment(tmp_path: Path, *, auto: bool = True, idle_s: float | None = None) -> RunDir:
    run_dir = RunDir(tmp_path / "d")
    run_dir.make()
    plan = plans.make_plan(
        models=[plans.make_model(shard="a")],
        cells=plans.make_cells(plans.make_component(0, "head"), replicas=[("m", "a", 4)]),
    )
    if auto:
        shards = {"m:a": ShardScale(start=3, least=2, most=4, capacity=4)}
        plan = replace(
            plan,
            autoscale=AutoscalePlan(
                shards=shards, up_at=0.75, down_at=0.25, cooldown_s=9.0, idle_s=idle_s
            ),
        )
    run_dir.generation(1).make(("c000",))
    run_dir.generation(1).plan.write_text(dumps(plan.sealed()))
    write_desired(run_dir, run=True, generation=1)
    return run_dir


def test_a_number_is_fixed_until_it_is_given_back(tmp_path: Path) -> None:
    run_dir = deployment(tmp_path)
    (before,) = wanted_now(run_dir)
    assert (before.wanted, before.least, before.most, before.automatic) == (3, 2, 4, True)
    scale(run_dir, {"m:a": 4}, environ=ENVIRON)
    found = run_dir.read_scale()
    assert found is not None
    assert (dict(found.replicas), found.fixed) == ({"m:a": 4}, ("m:a",))
    (now,) = wanted_now(run_dir)
    assert (now.wanted, now.automatic) == (4, False)
    scale(run_dir, {}, auto=["m"], environ=ENVIRON)
    (after,) = wanted_now(run_dir)
    assert (after.wanted, after.automatic) == (4, True)
    lines = [json.loads(line) for line in run_dir.history.read_text().splitlines()]
    assert [(line["verb"], line["shard"], line["replicas"]) for line in lines] == [
        ("scale", "m:a", "4"),
        ("scale", "m:a", "4"),
    ]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"m:a": 5}, "m:a: 5 asked, at most 4"),
        ({"m:a": 1}, "m:a: 1 asked, at least 2"),
        ({"m:a": 0}, "m:a: 0 asked, at least 2"),
        ({"m:b": 1}, "no shard 'm:b' in d; did you mean m:a?"),
    ],
)
def test_limits_are_named(tmp_path: Path, wanted: dict[str, int], said: str) -> None:
    run_dir = deployment(tmp_path)
    with pytest.raises(UserError) as caught:
        scale(run_dir, wanted, environ=ENVIRON)
    assert said in str(caught.value)
    assert run_dir.read_scale() is None


def test_none_where_a_request_wakes_it(tmp_path: Path) -> None:
    scale(run_dir := deployment(tmp_path, idle_s=60.0), {"m:a": 0}, environ=ENVIRON)
    assert wanted_now(run_dir)[0].wanted == 0


def test_without_autoscale_anything_that_is_planned(tmp_path: Path) -> None:
    run_dir = deployment(tmp_path, auto=False)
    scale(run_dir, {"m": 0}, environ=ENVIRON)
    assert wanted_now(run_dir)[0].wanted == 0
    with pytest.raises(UserError, match="is not scaled automatically"):
        scale(run_dir, {}, auto=["m:a"], environ=ENVIRON)
    write_desired(run_dir, run=False, generation=1)
    with pytest.raises(DeploymentError, match="is stopped"):
        scale(run_dir, {"m:a": 1}, environ=ENVIRON)


def test_the_key_goes_to_no_other_program_at_a_loopback_address(tmp_path: Path) -> None:
    run_dir = deployment(tmp_path)
    item = Submission(
        deployment="d", cell="c000", generation=1, plan_hash="x", token="t", job_name="exa-d-c000",
        created_s=1.0, state="submitted", job_id="local", host="elsewhere",
    )  # fmt: skip
    write_submission(run_dir.generation(1), item)
    with pytest.raises(DeploymentError, match="runs on elsewhere"):
        scale(run_dir, {"m:a": 4}, environ=ENVIRON)
    assert run_dir.read_scale() is None
