"""Allocations as Slurm 22.05 and 24.11 described them to real batch scripts (``data/``)."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from exaslurm.bootstrap.allocation import check_allocation, read_allocation
from exaslurm.core.plan import CellPlan, ComponentPlan
from exaslurm.errors import AllocationError

DATA = Path(__file__).parent / "data"


def recorded(name: str) -> dict[str, str]:
    lines = (DATA / f"slurm-{name}.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def component(group: int, nodes: int, *, least: int | None = None) -> ComponentPlan:
    return ComponentPlan(
        het_group=group,
        role="head" if group == 0 else "worker",
        kind="k",
        nodes=nodes,
        min_nodes=nodes if least is None else least,
        cpus_per_node=1,
        mem_mib_per_node=None,
        gpus_per_node=0,
        directives=(),
    )


def cell(*components: ComponentPlan) -> CellPlan:
    return CellPlan(name="c000", index=0, components=components, replica_sets=())


@pytest.mark.parametrize("version", ["22.05", "24.11"])
def test_heterogeneous(version: str) -> None:
    found = read_allocation(recorded(f"{version}-het"))
    assert found.job_id == "1"
    assert found.job_name == "e.sh"
    assert found.head == "c1"
    assert [(part.het_group, part.job_id, part.nodes) for part in found.components] == [
        (0, "1", ("c1",)),
        (1, "2", ("c2", "c3", "c4")),
    ]


@pytest.mark.parametrize("version", ["22.05", "24.11"])
def test_one_component(version: str) -> None:
    found = read_allocation(recorded(f"{version}-single"))
    assert [(part.het_group, part.nodes) for part in found.components] == [(0, ("c2", "c3", "c4"))]
    assert found.components[0].job_id == found.job_id


def test_start_time_where_slurm_tells_it() -> None:
    assert read_allocation(recorded("22.05-het")).start_s is None
    assert read_allocation(recorded("24.11-het")).start_s == 1795986065.0


def test_component_ids_are_read_not_counted() -> None:
    environ = {**recorded("22.05-het"), "SLURM_JOB_ID_HET_GROUP_1": "731"}
    assert read_allocation(environ).components[1].job_id == "731"


def test_outside_a_job() -> None:
    with pytest.raises(AllocationError, match="not a Slurm job"):
        read_allocation({"PATH": "/bin"})


def test_a_variable_that_a_prologue_unset_is_named() -> None:
    environ = recorded("22.05-het")
    del environ["SLURM_JOB_NODELIST_HET_GROUP_1"]
    with pytest.raises(AllocationError, match="SLURM_JOB_NODELIST_HET_GROUP_1"):
        read_allocation(environ)


def test_a_damaged_node_list() -> None:
    environ = {**recorded("22.05-single"), "SLURM_JOB_NODELIST": "c[2-"}
    with pytest.raises(AllocationError, match=r"c\[2-"):
        read_allocation(environ)


class _Plan:
    layout = "het"


def test_as_planned() -> None:
    allocation = read_allocation(recorded("22.05-het"))
    planned = cell(component(0, 1), component(1, 3))
    assert check_allocation(_Plan(), planned, allocation) == []  # type: ignore[arg-type]


def test_other_components_than_planned() -> None:
    allocation = read_allocation(recorded("22.05-single"))
    with pytest.raises(AllocationError, match=r"has 1 component.*has 2"):
        check_allocation(
            _Plan(),  # type: ignore[arg-type]
            cell(component(0, 1), component(1, 3)),
            allocation,
        )


def test_fewer_nodes_than_planned_but_enough() -> None:
    allocation = read_allocation(recorded("22.05-het"))
    planned = cell(component(0, 1), component(1, 4, least=2))
    (note,) = check_allocation(_Plan(), planned, allocation)  # type: ignore[arg-type]
    assert "3 node(s), planned were 4" in note


def test_too_few_nodes() -> None:
    allocation = read_allocation(recorded("22.05-het"))
    few = dataclasses.replace(
        allocation,
        components=(
            allocation.components[0],
            dataclasses.replace(allocation.components[1], nodes=("c2",)),
        ),
    )
    with pytest.raises(AllocationError, match="fewer than the 2 it needs"):
        check_allocation(
            _Plan(),  # type: ignore[arg-type]
            cell(component(0, 1), component(1, 4, least=2)),
            few,
        )
