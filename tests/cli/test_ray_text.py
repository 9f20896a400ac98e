"""What status says of a Ray that lacks nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from exaslurm.cli.ray_text import ray_lines
from exaslurm.core.cell import NodeState, RayCellState, RayNodeStatus
from exaslurm.status.model import CellStatus


def cell(ray: RayCellState | None, *nodes: NodeState, **more: Any) -> CellStatus:
    fields: dict[str, Any] = {"phase": "ready", "source": "controller", "cause": None, **more}
    return CellStatus(
        name="c000", remedy=None, job=None, nodes_planned=3, nodes_joined=3, replicas_planned=2,
        replicas_ready=2, ray=ray, nodes=nodes, **fields,
    )  # fmt: skip


def node(name: str, ray: RayNodeStatus | None) -> NodeState:
    return NodeState(node=name, het_group=1, state="joined", ray=ray)


PARTIAL = RayCellState(state="partial", nodes_alive=2, nodes_wanted=4, cause="not in Ray: n2, n3")
UP = node("n1", RayNodeStatus(state="up", epoch=1))
BROKEN = node("n2", RayNodeStatus(state="failed", epoch=1, cause="exit code 1: no such file"))
SLOW = node("n3", RayNodeStatus(state="starting", epoch=1))


def test_what_is_missing_and_why() -> None:
    assert ray_lines(cell(PARTIAL, UP, BROKEN, SLOW)) == [
        "Ray has 2 of 4 nodes (partial): not in Ray: n2, n3",
        "Ray on n2: exit code 1: no such file",
        "Ray on n3: starting, its log is n3.ray.log",
    ]


def test_nothing_is_said_where_nothing_is_wrong() -> None:
    assert ray_lines(cell(None, UP)) == []
    assert ray_lines(cell(RayCellState(state="off"), UP)) == []
    assert ray_lines(cell(replace(PARTIAL, state="complete"), UP)) == []
    # While it comes up the phase tells it.
    assert ray_lines(cell(PARTIAL, BROKEN, phase="ray")) == []
