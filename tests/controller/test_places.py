"""What a cell says of the places of its replicas."""

from __future__ import annotations

import dataclasses

from tests.controller.conftest import bind, engine, everybody, make_cell, report, serve_all


def test_planned_granted_and_actual_and_what_is_off_plan() -> None:
    cell = make_cell()
    everybody(cell, 1.0)
    bind(cell, 1.0)
    serve_all(cell, 2.0)
    one = next(iter(cell.replicas.values()))
    status = cell.state(2.0, 1).replicas[0]
    assert status.cores == one.binding.cores
    assert status.pinned == one.binding.pinned
    assert status.cores_granted == tuple(range(8))
    assert (status.cores_actual, status.off_plan) == (None, None)
    told = "planned for CPUs 1, but process 100 (vllm) may run on 0-7"
    seen = engine(one.id, cpus_actual=tuple(range(8)), mems_actual=(), off_plan=told)
    cell.on_report(report(one.binding.node, seen), 3.0)
    state = cell.state(3.0, 2)
    assert state.phase == "serving"
    assert state.replicas[0].off_plan == told
    assert state.replicas[0].cores_actual == tuple(range(8))
    assert state.notes[-1] == (
        f"{one.id} on {one.binding.node} is not where it was planned to be: {told}"
    )
    cell.on_report(report(one.binding.node, engine(one.id)), 4.0)
    assert not any("planned to be" in note for note in cell.state(4.0, 3).notes)


def test_a_new_place_that_is_far_is_said() -> None:
    cell = make_cell()
    everybody(cell, 1.0)
    bind(cell, 1.0)
    one = next(iter(cell.replicas.values()))
    told = "2 of 6 cores are not in the NUMA node of its GPU"
    one.move(dataclasses.replace(one.binding, remark=told), 2.0)
    assert f"{one.binding.node}: {one.id}: {told}" in cell.state(2.0, 1).notes
    assert cell.state(2.0, 1).replicas[0].remark == told
