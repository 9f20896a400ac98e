"""Planned, granted and actual place of replicas, for a person."""

from __future__ import annotations

from typing import Any

from exaslurm.cli.status_text import placement_table
from exaslurm.core.cell import ReplicaStatus


def replica(number: int, **more: Any) -> ReplicaStatus:
    fields: dict[str, Any] = {
        "cores": (8, 9),
        "cores_granted": tuple(range(16)),
        "cores_actual": (8, 9),
        "pinned": True,
        **more,
    }
    return ReplicaStatus(
        id=f"c000-r{number:04}", model="m", shard="base", served_names=("m",), state="ready",
        node="n1", url="http://127.0.0.1:1", **fields,
    )  # fmt: skip


def rows(*replicas: ReplicaStatus) -> list[list[str]]:
    return [line.split() for line in placement_table(list(replicas)).splitlines()]


def test_what_was_planned_granted_and_is() -> None:
    header, one, two, three, four = rows(
        replica(0, gpus=("2",), gpus_granted=("0", "1", "2", "3"), hca="mlx5_2:1",
                mem_nodes=(1,), mem_nodes_actual=(1,)),
        replica(1, cores_actual=(8, 9, 10), off_plan="planned for ...", mem_nodes=(1,),
                mem_nodes_actual=()),
        replica(2, cores_actual=None),
        replica(3, remark="1 of 2 cores are not in the NUMA node of its GPU"),
    )  # fmt: skip
    assert header == ["REPLICA", "NODE", "PLANNED", "GRANTED", "ACTUAL", "MEMORY", "GPUS",
                      "NETWORK", "PLACE"]  # fmt: skip
    assert one == ["c000-r0000", "n1", "8-9", "0-15", "8-9", "1", "2", "of", "0,1,2,3",
                   "mlx5_2:1", "as", "planned"]  # fmt: skip
    assert two == ["c000-r0001", "n1", "8-9", "0-15", "8-10", "1", "(from", "any)", "-", "-",
                   "off", "plan"]  # fmt: skip
    assert three[-2:] == ["not", "seen"]
    assert four[-4:] == ["as", "planned,", "see", "note"]


def test_replicas_that_share_cores_have_no_place_of_their_own() -> None:
    assert placement_table([replica(0, pinned=False)]) == ""
    assert len(rows(replica(0, pinned=False), replica(1))) == 2
