"""A router knows the models of its plan that may have no replica, and tells who is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from exaslurm.core.codec import dumps, loads
from exaslurm.core.plan import AutoscalePlan, ShardScale
from exaslurm.core.scale import Asked
from exaslurm.gateway.sleepers import Sleepers
from exaslurm.rundir import RunDir
from exaslurm.submit.records import write_desired
from tests.tools import plans


def deployment(tmp_path: Path, *, idle_s: float | None) -> RunDir:
    run_dir = RunDir(tmp_path / "d")
    run_dir.make()
    shards = {"m:a": ShardScale(start=1, least=1, most=2, capacity=4)}
    scale = AutoscalePlan(shards=shards, up_at=0.75, down_at=0.25, cooldown_s=9, idle_s=idle_s)
    plan = replace(
        plans.make_plan(
            models=[plans.make_model(shard="a")],
            cells=plans.make_cells(plans.make_component(0, "head"), replicas=[("m", "a", 2)]),
        ),
        autoscale=scale,
    ).sealed()
    run_dir.generation(1).make(("c000",))
    run_dir.generation(1).plan.write_text(dumps(plan))
    write_desired(run_dir, run=True, generation=1)
    return run_dir


def test_names_and_who_waits(tmp_path: Path) -> None:
    run_dir = deployment(tmp_path, idle_s=60.0)
    found: list[Mapping[str, str]] = []
    waiting: dict[str, int] = {}
    now = [1000.0]
    sleepers = Sleepers(run_dir, found.append, lambda: waiting, lambda: now[0])
    sleepers.refresh()
    sleepers.refresh()
    assert found == [{"m": "m", "m:a": "m"}]
    assert not run_dir.wake.exists()
    waiting |= {"m": 2, "m:a": 1, "other": 5}
    sleepers.refresh()
    path = run_dir.wake / "m:a.json"
    asked = loads(Asked, path.read_text(), where="here")
    assert asked == Asked(shard="m:a", count=3, time_s=1000.0)
    path.unlink()
    now[0] += 1
    sleepers.refresh()  # told already
    assert not path.exists()
    now[0] += 5
    sleepers.refresh()  # and again while somebody waits
    assert path.exists()


def test_models_that_never_sleep(tmp_path: Path) -> None:
    found: list[Mapping[str, str]] = []
    Sleepers(deployment(tmp_path, idle_s=None), found.append, dict).refresh()
    assert found == [{}]
