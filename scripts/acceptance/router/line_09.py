"""Wrong requests by the thousand, and the router stays well."""

from __future__ import annotations

import os

from acceptance.router.kit import package
from acceptance.runner import Line
from tests.tools.fuzz_http import DEADLINE_S, fuzz

TITLE = "malformed HTTP and JSON: no 5xx, no hang, no leak, the next good request is answered"

CASES = 24_000
_MAX_GROWTH_KIB = 12 * 1024


def run(line: Line) -> None:
    if not os.environ.get("EXASLURM_INTERPRETED"):
        os.environ["EXASLURM_TEST_COMPILED"] = package()
    report = fuzz(CASES)
    for failure in report.failures[:20]:
        line.note(failure)
    kinds = ", ".join(f"{name} {count}" for name, count in sorted(report.kinds.items()))
    statuses = ", ".join(f"{status}: {count}" for status, count in sorted(report.statuses.items()))
    line.note(f"kinds: {kinds}")
    line.note(f"answers: {statuses}")
    line.note(f"{report.cases / report.took_s:.0f} cases/s; {report.forwarded} reached the engine")
    line.at_least("malformed requests", report.cases, 20_000)
    line.check("nothing that must not be", not report.failures, len(report.failures))
    ours = sum(count for status, count in report.statuses.items() if status >= 500)
    line.at_most("answers of 500 and more", ours, 0, "")
    line.at_most("slowest answer", report.slowest[0], DEADLINE_S)
    line.at_least("good requests answered in between", report.good, CASES // 200)
    line.at_most("in flight when all is over", report.in_flight, 0, "")
    line.at_most("outstanding at the engine", report.outstanding, 0, "")
    line.at_most("file descriptors more than before", report.fds[1] - report.fds[0], 2, "")
    growth = report.growth_kib()
    line.at_most("memory grown over the last three quarters", growth, _MAX_GROWTH_KIB, "KiB")
