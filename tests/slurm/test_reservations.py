from __future__ import annotations

from exaslurm.slurm.parse import unix_time
from exaslurm.slurm.reservations import first_in_the_way, parse_maintenance
from exaslurm.util.hostlist import expand

# As Slurm 24.11 prints it.
TEXT = """\
ReservationName=later StartTime=2026-12-09T08:00:00 EndTime=2026-12-09T12:00:00 Duration=04:00:00 \
Nodes=c[1-2] NodeCnt=2 CoreCnt=16 Features=(null) PartitionName=gpu Flags=MAINT,IGNORE_JOBS,\
SPEC_NODES TRES=cpu=32 Users=root Groups=(null) Accounts=(null) Licenses=(null) State=INACTIVE
ReservationName=course StartTime=2026-12-01T08:00:00 EndTime=2026-12-01T12:00:00 Nodes=c1 Flags=
ReservationName=sooner StartTime=2026-12-02T08:00:00 EndTime=2026-12-02T12:00:00 Nodes=c3,d7 \
NodeCnt=2 Flags=MAINT
ReservationName=odd StartTime=Unknown EndTime=2026-12-02T12:00:00 Nodes=c3 Flags=MAINT
"""


def test_maintenance_only() -> None:
    sooner, later = parse_maintenance(TEXT, expand)
    assert (sooner.name, later.name) == ("sooner", "later")
    assert sooner.nodes == {"c3", "d7"}
    assert later.nodes == {"c1", "c2"}
    assert later.start_s == unix_time("2026-12-09T08:00:00")
    assert parse_maintenance("No reservations in the system\n", expand) == ()


def test_what_is_in_the_way() -> None:
    maintenance = parse_maintenance(TEXT, expand)
    sooner, later = maintenance
    nodes = frozenset({"c1", "c2", "c3"})
    far_s = later.end_s
    assert first_in_the_way(maintenance, nodes, 3, until_s=far_s) == sooner
    assert first_in_the_way(maintenance, nodes, 2, until_s=far_s) == later
    assert first_in_the_way(maintenance, nodes, 2, until_s=later.start_s) is None
    assert first_in_the_way(maintenance, nodes, 0, until_s=far_s) is None
