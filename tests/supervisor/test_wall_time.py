from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from exaslurm.core.plan import CellPlan, ComponentPlan
from exaslurm.errors import QueryFailed
from exaslurm.supervisor.wall_time import LEAST_S, MARGIN_S, before_maintenance, limit_s

NOW_S = 1_000_000.0
HOUR_S = 3600.0


@dataclass
class Asked:
    reservations: str = "No reservations in the system\n"
    silent: bool = False
    asked: list[str] = field(default_factory=list)

    def query(self, argv: Sequence[str]) -> str:
        self.asked.append(argv[0])
        if self.silent:
            raise QueryFailed("scontrol failed: Socket timed out", transient=True)
        if argv[0] == "sinfo":
            return "c1 gpu\nc2 gpu\nc3 gpu\nc4 gpu\nh1 cpu\nh2 cpu\n"
        return self.reservations


def component(group: int, partition: str, nodes: int, limit: str | None) -> ComponentPlan:
    time_limit = (("time", limit),) if limit else ()
    return ComponentPlan(
        het_group=group,
        role="head" if group == 0 else "worker",
        kind=partition,
        nodes=nodes,
        min_nodes=nodes,
        cpus_per_node=1,
        mem_mib_per_node=None,
        gpus_per_node=0,
        directives=(("partition", partition), *time_limit, ("no-kill", None)),
    )


def cell(nodes: int = 2, limit: str | None = "1-00:00:00") -> CellPlan:
    parts = (component(0, "cpu", 1, limit), component(1, "gpu", nodes, limit))
    return CellPlan(name="c000.2", index=0, components=parts, replica_sets=())


def reservation(start_s: float, nodes: str, flags: str = "MAINT,SPEC_NODES") -> str:
    begin, end = (
        time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(when))
        for when in (start_s, start_s + 4 * HOUR_S)
    )
    return (
        f"ReservationName=maint_1 StartTime={begin} EndTime={end} Duration=04:00:00 Nodes={nodes} "
        f"NodeCnt=4 CoreCnt=64 Features=(null) PartitionName=(null) Flags={flags} TRES=cpu=64 "
        "Users=root Groups=(null) Accounts=(null) Licenses=(null) State=INACTIVE "
        "BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)\n"
    )


def times(found: CellPlan) -> list[str | None]:
    return [dict(part.directives)["time"] for part in found.components]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800.0),
        ("30:15", 1815.0),
        ("01:00:00", 3600.0),
        ("1-00", 86400.0),
        ("2-12:30", 217800.0),
        ("1-00:00:30", 86430.0),
        ("UNLIMITED", None),
        (None, None),
    ],
)
def test_limits(text: str | None, seconds: float | None) -> None:
    assert limit_s(text) == seconds


def test_shorter_before_a_maintenance() -> None:
    slurm = Asked(reservation(NOW_S + 5 * HOUR_S, "c[1-4]"))
    found, maintenance = before_maintenance(cell(), slurm, NOW_S)
    assert maintenance is not None
    assert maintenance.name == "maint_1"
    assert times(found) == ["298", "298"]  # five hours, less two minutes
    assert found.name == "c000.2"
    assert [dict(part.directives)["partition"] for part in found.components] == ["cpu", "gpu"]


@pytest.mark.parametrize(
    "text",
    [
        "No reservations in the system\n",
        reservation(NOW_S + 5 * HOUR_S, "c[1-2]"),  # two others are left
        reservation(NOW_S + 25 * HOUR_S, "c[1-4]"),  # it will have ended
        reservation(NOW_S + 5 * HOUR_S, "c[1-4]", flags="SPEC_NODES"),
        reservation(NOW_S - 5 * HOUR_S, "c[1-4]"),  # over
        reservation(NOW_S - HOUR_S, "c[1-4]"),  # it has begun: wait until it is over
        reservation(NOW_S + MARGIN_S + LEAST_S - 60, "c[1-4]"),  # not worth a start
        reservation(NOW_S + 5 * HOUR_S, "d[1-4"),
    ],
)
def test_as_it_is(text: str) -> None:
    assert before_maintenance(cell(), Asked(text), NOW_S) == (cell(), None)


def test_two_that_together_leave_too_few() -> None:
    both = reservation(NOW_S + 5 * HOUR_S, "c1") + reservation(NOW_S + 3 * HOUR_S, "c[3-4]")
    found, _ = before_maintenance(cell(), Asked(both), NOW_S)
    assert times(found) == ["298", "298"]


def test_the_head_counts_too() -> None:
    found, _ = before_maintenance(cell(), Asked(reservation(NOW_S + HOUR_S, "h[1-2]")), NOW_S)
    assert times(found) == ["58", "58"]


def test_without_an_answer_or_a_limit() -> None:
    text = reservation(NOW_S + 5 * HOUR_S, "c[1-4]")
    assert before_maintenance(cell(), Asked(text, silent=True), NOW_S) == (cell(), None)
    slurm = Asked(text)
    assert before_maintenance(cell(limit=None), slurm, NOW_S) == (cell(limit=None), None)
    assert slurm.asked == []
