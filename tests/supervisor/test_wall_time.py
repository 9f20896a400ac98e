from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from exaslurm.core.plan import CellPlan, ComponentPlan
from exaslurm.errors import QueryFailed
from exaslurm.supervisor.wall_time import (
    LEAST_S,
    MARGIN_S,
    Calendar,
    CalendarWatch,
    ask_calendar,
    before_maintenance,
    relimited,
    taken_by,
)

NOW_S = 1_000_000.0
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


@dataclass
class Asked:
    reservations: str = "No reservations in the system\n"
    silent: bool = False
    nodes: str = "c1 gpu\nc2 gpu\nc3 gpu\nc4 gpu\nh1 cpu*\nh2 cpu*\n"
    asked: list[str] = field(default_factory=list)

    def query(self, argv: Sequence[str]) -> str:
        self.asked.append(argv[0])
        if self.silent:
            raise QueryFailed("scontrol failed: Socket timed out", transient=True)
        if argv[0] == "sinfo":
            return self.nodes
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


def calendar(text: str) -> Calendar:
    return ask_calendar(Asked(text), NOW_S)


def test_a_job_that_waits_is_made_shorter() -> None:
    soon = calendar(reservation(NOW_S + HOUR_S, "c[1-4]"))
    found = relimited(cell(), [DAY_S, DAY_S], soon, NOW_S)
    assert found is not None
    assert found.maintenance is not None
    assert (found.minutes, found.maintenance.name) == (58, "maint_1")
    # Short enough: left alone, also when little of the time before it is left.
    assert relimited(cell(), [58 * 60.0, 58 * 60.0], soon, NOW_S) is None
    assert relimited(cell(), [58 * 60.0, 58 * 60.0], soon, NOW_S + 100) is None
    later = relimited(cell(), [58 * 60.0, DAY_S], soon, NOW_S + 130)
    assert later is not None
    assert later.minutes == 55


def test_it_gets_its_time_back() -> None:
    short = [1200.0, 1200.0]
    for text, now_s in (
        ("No reservations in the system\n", NOW_S),
        # Too little is left before it: afterwards, then.
        (reservation(NOW_S + 1500, "c[1-4]"), NOW_S + 1000),
    ):
        found = relimited(cell(), short, calendar(text), now_s, is_shortened=True)
        assert found is not None
        assert (found.minutes, found.maintenance) == (1440, None)
        # What somebody else has made short stays so.
        assert relimited(cell(), short, calendar(text), now_s) is None


def test_without_a_planned_limit() -> None:
    soon = calendar(reservation(NOW_S + HOUR_S, "c[1-4]"))
    found = relimited(cell(limit=None), [None, None], soon, NOW_S)
    assert found is not None
    assert found.minutes == 58
    assert relimited(cell(limit=None), [3600.0, 3480.0], Calendar(), NOW_S) is None
    assert relimited(cell(), [], soon, NOW_S) is None


def test_a_running_job_on_nodes_that_a_maintenance_takes() -> None:
    soon = calendar(reservation(NOW_S + HOUR_S, "c[1-2]"))
    at = {"now_s": NOW_S, "end_s": NOW_S + DAY_S}
    taking = taken_by(cell(), ["h1", "c2", "c3"], soon, **at)
    assert taking is not None
    assert taking.start_s == NOW_S + HOUR_S
    # On other nodes; over before; for longer than all others would do.
    assert taken_by(cell(), ["h1", "c3", "c4"], soon, **at) is None
    assert taken_by(cell(), ["c1"], soon, now_s=NOW_S, end_s=NOW_S + 1800) is None
    assert taken_by(cell(nodes=3), ["h1", "c1", "c2", "c3"], soon, **at) is None
    # One without an end, and one that the maintenance has begun under.
    assert taken_by(cell(), ["c1"], soon, now_s=NOW_S, end_s=None) is not None
    assert taken_by(cell(), ["c1"], soon, now_s=NOW_S + HOUR_S, end_s=None) is None


def test_the_calendar_is_asked_for_once_a_minute() -> None:
    slurm = Asked(reservation(NOW_S + HOUR_S, "c[1-4]"))
    now_s = NOW_S
    watch = CalendarWatch(slurm, lambda: now_s)
    for _ in range(5):
        assert [item.name for item in watch.current().maintenance] == ["maint_1"]
    assert slurm.asked == ["scontrol", "sinfo"]
    now_s += 61
    slurm.silent = True
    assert [item.name for item in watch.current().maintenance] == ["maint_1"]
    now_s += 5 * HOUR_S
    assert watch.current().maintenance == ()


def test_the_default_partition() -> None:
    found = ask_calendar(
        Asked(reservation(NOW_S + HOUR_S, "c[1-2]"), nodes="c1 gpu*\nc2 gpu*\nh1 cpu\n"), NOW_S
    )
    assert found.partitions[""] == found.partitions["gpu"] == {"c1", "c2"}
