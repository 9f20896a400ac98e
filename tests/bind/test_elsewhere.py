"""One shard in several cells: not all of it below one switch, if that can be."""

from __future__ import annotations

import dataclasses
import random

import pytest

from exaslurm.bind.binder import bind_cell
from exaslurm.bind.elsewhere import MAX_CELLS, cells_to_ask, fatal_elsewhere, turns
from exaslurm.core.binding import CellBinding
from exaslurm.core.facts import NodeFacts
from exaslurm.core.marker import BootstrapMarker
from exaslurm.core.plan import CellPlan, Plan
from tests.tools.apart import Case, granted, worker_places

Leaves = dict[str, list[str]]


def nodes_of(plan: Plan, cell: CellPlan, leaves: list[str]) -> list[NodeFacts]:
    """Nodes with more room than was asked for, so that there is a choice."""
    return [
        granted(
            cell,
            dataclasses.replace(part, gpus_per_node=4, cpus_per_node=16, mem_mib_per_node=65536),
            order,
            ("spine", leaf),
        )
        for (_, part, order), leaf in zip(
            [place for place in worker_places(plan) if place[0] is cell], leaves, strict=True
        )
    ]


def bind_all(
    plan: Plan, leaves: Leaves, *, order: list[str] | None = None, blind: bool = False
) -> list[tuple[CellBinding, BootstrapMarker]]:
    """The cells in the order in which they bind; ``blind``: all at the same moment."""
    done: list[tuple[CellBinding, BootstrapMarker]] = []
    for name in order or [cell.name for cell in plan.cells]:
        cell = plan.cell(name)
        facts = nodes_of(plan, cell, leaves[name])
        asked = [pair for pair in done if pair[0].cell in cells_to_ask(plan, cell)]
        binding = bind_cell(plan, cell, facts, None if blind else fatal_elsewhere(asked))
        marker = BootstrapMarker(
            plan_hash=plan.hash, deployment="d", cell=name, job_id="1", job_name="x",
            het_job_ids={}, nodes={}, host="h", started_s=0.0,
            switches={one.node: one.switches for one in facts},
        )  # fmt: skip
        done.append((binding, marker))
    return done


def fatal(done: list[tuple[CellBinding, BootstrapMarker]]) -> set[str]:
    """Shards that one leaf switch would end."""
    return {shard for (_, shard), names in fatal_elsewhere(done).items() if names - {"spine"}}


@pytest.mark.parametrize("blind", [False, True])
@pytest.mark.parametrize("cells", [2, 3, 4])
def test_cells_below_the_same_switches(cells: int, blind: bool) -> None:
    plan = Case((4,), (2 * cells,), cells, (2, 2, 3, 2)).plan()
    leaves = {cell.name: ["l1", "l2"] for cell in plan.cells}
    assert fatal(bind_all(plan, leaves, blind=blind)) == set()


def test_the_later_cell_goes_where_the_earlier_one_is_not() -> None:
    plan = Case((4,), (4,), 2, (2, 2)).plan()
    leaves = {"c000": ["l1", "l1"], "c001": ["l1", "l2"]}
    assert fatal(bind_all(plan, leaves)) == set()
    leaves = {"c000": ["l2", "l1"], "c001": ["l2", "l2"]}
    assert fatal(bind_all(plan, leaves, order=["c001", "c000"])) == set()
    # There is nothing to choose.
    assert fatal(bind_all(plan, {"c000": ["l1", "l1"], "c001": ["l1", "l1"]})) == {"s0", "s1"}


@pytest.mark.parametrize("seed", range(20))
def test_what_the_last_cell_can_mend_it_mends(seed: int) -> None:
    draw = random.Random(seed)
    plan = Case((4,), (6,), 3, tuple(draw.choice([2, 3, 5]) for _ in range(3))).plan()
    leaves = {cell.name: [draw.choice(["l1", "l2", "l3"]) for _ in range(2)] for cell in plan.cells}
    order = [cell.name for cell in plan.cells]
    draw.shuffle(order)
    done = bind_all(plan, leaves, order=order)
    for (model, shard), names in fatal_elsewhere(done).items():
        for leaf in names - {"spine"}:
            # The last cell that has the shard is below that switch with all its nodes.
            last = [
                name
                for name in order
                if any(item.shard == shard for item in plan.cell(name).replica_sets)
            ][-1]
            assert set(leaves[last]) == {leaf}, (model, shard)


def test_not_all_of_many_cells_are_asked() -> None:
    plan = Case((1,), (40,), 20, (20, 2)).plan()
    asked = cells_to_ask(plan, plan.cells[10])
    assert asked[:2] == ["c009", "c011"]
    assert len(asked) == MAX_CELLS
    assert turns(plan, plan.cells[10])["m", "s0"] == 10
    single = Case((1,), (2,), 1, (2,)).plan()
    assert cells_to_ask(single, single.cells[0]) == []
