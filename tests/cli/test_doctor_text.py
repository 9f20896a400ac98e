"""What a person reads of a doctor's report."""

from __future__ import annotations

from exaslurm.cli.doctor_text import doctor_text, headline
from exaslurm.core.checks import failed, passed, skipped, warned
from exaslurm.doctor.model import HostReport, report

GOOD = passed("shm.size", "500 MiB free")
BAD = failed("shm.size", "64 MiB free", "enlarge it")


def test_the_login_node_line_by_line() -> None:
    checks = (passed("slurm.version", "22.05.8"), warned("clock.sync", "not kept", "run ntpd"),
              passed("slurm.partition", "UP", subject="gpu"))  # fmt: skip
    text = doctor_text(report("lab", [HostReport(host="login1", role="login", checks=checks)]))
    assert text.splitlines() == [
        "login1 (login node)",
        "pass  slurm.version        22.05.8",
        "warn  clock.sync           not kept",
        "                           remedy: run ntpd",
        "pass  slurm.partition gpu  UP",
    ]


def test_nodes_share_a_line_where_all_is_well() -> None:
    nodes = [
        HostReport(host=f"c{n}", role="node", checks=(BAD if n == 3 else GOOD, skipped("x.y", "-")))
        for n in range(1, 10)
    ]
    assert doctor_text(report("lab", nodes)).splitlines() == [
        "9 nodes: c1, c2, c3, c4, c5, c6 and 3 more",
        "pass  shm.size  c1, c2, c4, c5, c6, c7 and 2 more: 500 MiB free",
        "fail  shm.size  c3: 64 MiB free",
        "                remedy: enlarge it",
        "skip  x.y       c1, c2, c3, c4, c5, c6 and 3 more: -",
    ]


def test_values_that_differ_are_counted() -> None:
    nodes = [
        HostReport(host=f"c{n}", role="node", checks=(passed("shm.size", f"{n} GiB"),))
        for n in (1, 2, 3)
    ]
    assert "1 GiB (2 more values)" in doctor_text(report("lab", nodes))


def test_what_it_comes_to() -> None:
    found = report("lab", [HostReport(host="c1", role="node", checks=(BAD, GOOD))])
    assert headline(found) == "site lab, 1 host: 1 failed, 0 warned"
