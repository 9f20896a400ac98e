"""On a node short of memory the least important replica gives way, and comes back."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from exaslurm.controller.cell import Cell
from exaslurm.controller.memory import ControllerMemory
from exaslurm.controller.pressure import (
    LASTING_S,
    Candidate,
    Pressure,
    who_gives_way,
)
from exaslurm.core.cell import GpuMemory, MemoryFigures
from exaslurm.core.codec import dumps, loads
from exaslurm.core.plan import EnginePlan
from tests.controller.conftest import bind, everybody, make_marker
from tests.controller.played import Played
from tests.tools import plans


def figures(used: int, limit: int = 10000, **more: Any) -> MemoryFigures:
    return MemoryFigures(used_mib=used, limit_mib=limit, **more)


def candidate(name: str, **more: Any) -> Candidate:
    given = {"priority": 0, "busy": 0, "size_mib": 100, "alone": False, **more}
    return Candidate(replica=name, **given)


# -- who


def test_the_lowest_priority_gives_way_whatever_it_does() -> None:
    found = who_gives_way(
        [
            candidate("a", priority=5, busy=0, size_mib=9000),
            candidate("b", priority=1, busy=50, alone=True),
        ]
    )
    assert found is not None
    assert found.replica == "b"


def test_of_equals_the_one_with_fewest_requests_then_the_largest() -> None:
    found = who_gives_way([candidate("a", busy=3), candidate("b", busy=1), candidate("c", busy=2)])
    assert found is not None
    assert found.replica == "b"
    found = who_gives_way([candidate("a", size_mib=10), candidate("b", size_mib=20)])
    assert found is not None
    assert found.replica == "b"


def test_of_equals_not_the_only_one_of_its_shard() -> None:
    found = who_gives_way([candidate("a", alone=True), candidate("b", busy=9)])
    assert found is not None
    assert found.replica == "b"
    assert who_gives_way([candidate("a", alone=True), candidate("b", alone=True)]) is None


def test_nobody_gives_way_to_itself() -> None:
    assert who_gives_way([candidate("a")]) is None
    assert who_gives_way([]) is None


# -- when


def shorts(pressure: Pressure, now: float) -> list[str]:
    return [f"{item.node}: {item.what}" for item in pressure.shortages(now)]


def test_a_moment_is_no_shortage() -> None:
    pressure = Pressure()
    for now in (0.0, 5.0):
        pressure.on_report("n1", figures(9600), now)
        assert shorts(pressure, now) == []
    pressure.on_report("n1", figures(9000), 9.0)
    pressure.on_report("n1", figures(9600), 10.0)
    assert shorts(pressure, 10.0) == []
    pressure.on_report("n1", figures(9600), 10.0 + LASTING_S)
    assert shorts(pressure, 20.0) == ["n1: memory"]
    assert shorts(pressure, 60.0) == []  # it has said nothing since


def test_tasks_that_wait_for_memory_make_it_short_earlier() -> None:
    pressure = Pressure()
    for now in (0.0, 10.0):
        pressure.on_report("n1", figures(8700, stalled_pct=12.0), now)
        pressure.on_report("n2", figures(8700, stalled_pct=2.0), now)
        pressure.on_report("n3", figures(5000, stalled_pct=50.0), now)
    assert shorts(pressure, 10.0) == ["n1: memory"]


def test_a_gpu_is_looked_at_by_itself() -> None:
    pressure = Pressure()
    gpus = (GpuMemory(visible_id="0", used_mib=79000, limit_mib=81000),
            GpuMemory(visible_id="1", used_mib=40000, limit_mib=81000))  # fmt: skip
    for now in (0.0, 10.0):
        pressure.on_report("n1", figures(100, gpus=gpus), now)
    assert shorts(pressure, 10.0) == ["n1: 0"]
    assert "GPU 0 of n1 is short of memory (79000 of 81000 MiB used)" in [
        item.sentence for item in pressure.shortages(10.0)
    ]
    # An engine takes nearly all of its own GPU: that is no reason to place nothing on the node.
    assert not pressure.is_short("n1")


def test_room_is_there_after_a_while_only() -> None:
    pressure = Pressure()
    pressure.on_report("n1", figures(9700), 0.0)
    pressure.on_report("n1", figures(3000), 5.0)
    assert not pressure.has_room("n1", 4000, pressure.calm_s(0), 59.0)
    assert pressure.has_room("n1", 4000, pressure.calm_s(0), 60.0)
    assert not pressure.has_room("n1", 6000, pressure.calm_s(0), 60.0)
    assert not pressure.has_room("n1", 4000, pressure.calm_s(1), 100.0)
    assert pressure.has_room("n1", 4000, pressure.calm_s(1), 120.0)
    assert pressure.calm_s(10_000) == 3600.0
    assert pressure.has_room("n2", 4000, 60.0, 0.0)  # of which nobody knows anything


# -- in a cell


def two_shards(*, nodes: int = 1, idle: int = 1) -> Played:
    """Nodes with one replica each of an important shard, and ``idle`` ones of another."""
    models = [
        plans.make_model(
            name=name, shard="a", max_replicas_per_node=1,
            engine=EnginePlan(kind="simulated", device="cpu"),
        )
        for name in ("vital", "idle")
    ]  # fmt: skip
    models = [
        dataclasses.replace(
            model, shards=tuple(dataclasses.replace(s, priority=priority) for s in model.shards)
        )
        for model, priority in zip(models, (10, 1), strict=True)
    ]
    plan = plans.make_plan(
        models=models,
        cells=plans.make_cells(
            plans.make_component(0, "head"),
            plans.make_component(1, "worker", nodes=nodes, min_nodes=1, cpus_per_node=8),
            replicas=[("vital", "a", nodes), ("idle", "a", idle)],
        ),
        ray=False, nodes_s=30.0, stage_s=60.0, ready_s=60.0, drain_s=5.0,
    ).sealed()  # fmt: skip
    workers = tuple(f"n{2 + index}" for index in range(nodes))
    cell = Cell(plan, make_marker(plan, workers), generation=1, now=0.0, submitted_s=0.0)
    everybody(cell, 100.0, ("n1", *workers))
    bind(cell, 100.0)
    played = Played(cell)
    played.dead = {"n2", "n3", "n4"} - set(workers)
    played.until(played.all_ready)
    return played


def states(played: Played) -> dict[str, str]:
    return {replica.model.name: replica.state for replica in played.replicas()}


def test_the_idle_one_gives_way_and_comes_back() -> None:
    played = two_shards()
    played.sizes = {"c000-r0000": 4000, "c000-r0001": 3000}
    played.memory["n2"] = figures(9700, bound="/slurm/uid_1/job_7")
    played.until(lambda: states(played) == {"vital": "ready", "idle": "stopped"})
    idle = played.cell.replicas["c000-r0001"]
    assert idle.cause == (
        "it gave way to more important ones (its priority is 1): n2 is short of memory "
        "(9.5 of 9.8 GiB used, limit of cgroup /slurm/uid_1/job_7)"
    )
    assert played.running("c000-r0001") == []
    assert played.cell.phase(played.now) == "degraded"
    # Still short: the important one stays all the same.
    played.run(120)
    assert states(played) == {"vital": "ready", "idle": "stopped"}
    # Free, but not enough for it; then enough, for a minute.
    played.memory["n2"] = figures(6000)
    played.run(120)
    assert states(played)["idle"] == "stopped"
    played.memory["n2"] = figures(4000)
    played.until(played.all_ready, 10.0)
    assert idle.cause is None


def test_one_that_comes_back_in_vain_waits_longer() -> None:
    played = two_shards()
    played.sizes = {"c000-r0001": 1000}
    waits = []
    for _ in range(3):
        played.memory["n2"] = figures(9700)
        played.until(lambda: states(played)["idle"] == "stopped")
        played.memory["n2"] = figures(4000)
        waits.append(played.until(played.all_ready, 600.0))
    assert waits[0] < waits[1] < waits[2]
    assert waits[2] > 200


def test_it_goes_where_there_is_room() -> None:
    played = two_shards(nodes=2, idle=1)
    (idle,) = [replica for replica in played.replicas() if replica.model.name == "idle"]
    before, other = idle.binding.node, {"n2": "n3", "n3": "n2"}[idle.binding.node]
    played.memory[before] = figures(9700)
    played.memory[other] = figures(3000)
    played.until(lambda: idle.binding.node == other and played.all_ready())
    played.run(120)
    assert played.all_ready()


def test_equals_give_way_but_not_the_last_of_a_shard() -> None:
    played = Played(replicas=6)
    played.until(played.all_ready)
    here = [r for r in played.replicas() if r.binding.node == "n2"]
    assert len(here) == 2
    played.busy = {here[0].id: 0, here[1].id: 7}
    played.memory["n2"] = figures(9700)
    for node in ("n3", "n4"):
        played.memory[node] = figures(8000)
    played.until(lambda: here[0].state == "stopped")
    assert "others as important" in (here[0].cause or "")
    played.run(200)
    assert [r.state for r in played.replicas()].count("ready") == 5


def test_what_rests_rests_under_the_next_controller() -> None:
    played = two_shards()
    played.memory["n2"] = figures(9700)
    played.until(lambda: states(played)["idle"] == "stopped")
    before = played.cell
    assert before.binding is not None
    memory = loads(ControllerMemory, dumps(before.memory(played.now)), where="test")
    played.cell = Cell(before.plan, before.marker, generation=1, now=played.now)
    played.cell.recall(before.binding, memory, played.now)
    played.run(60)
    assert states(played) == {"vital": "ready", "idle": "stopped"}
    assert played.running("c000-r0001") == []
    played.memory["n2"] = figures(1000)
    played.until(played.all_ready, 200.0)


@pytest.mark.parametrize("used", [9499, 9500])
def test_the_limit_is_as_stated(used: int) -> None:
    played = two_shards()
    played.memory["n2"] = figures(used)
    played.run(40)
    assert states(played)["idle"] == ("ready" if used < 9500 else "stopped")
