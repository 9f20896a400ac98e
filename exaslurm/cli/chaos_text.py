"""What ``exaslurm chaos`` says to people."""

from __future__ import annotations

from exaslurm.chaos.run import Report
from exaslurm.cli.output import paint, seconds, table


def report_text(report: Report) -> str:
    """The figures, with what was done and mended before them."""
    found = report.figures
    failed = found.failed
    rows = [
        ("requests sent", str(found.sent)),
        ("answered", str(found.ok)),
        ("not begun and failed", _bad(failed["not_begun"])),
        ("begun streams that ended with an error event", str(failed["begun_event"])),
        ("begun streams that were cut off", _bad(failed["begun_cut"])),
        ("lost with the router, after one reconnect", _bad(failed["router_lost"])),
        ("sent to another replica by the router", _count(found.retried)),
        ("asked again by the client, over a new connection", str(found.reconnected)),
        ("longest time without any answer", seconds(found.longest_gap_s)),
        ("plain requests that waited were answered within", seconds(found.waited_s)),
        ("98.5 % answered, second by second, after", _time(found.to_success_s)),
        ("full strength after", _time(report.to_strength_s)),
        ("engines: the same processes, others", f"{report.engines_same}, {report.engines_changed}"),
    ]
    lines = [
        f"{report.fault} at {report.deployment} (site {report.site}): {', '.join(report.victims)}",
        *(f"  did: {text}" for text in report.did),
        *(f"  mended: {text}" for text in report.mended),
        *(paint(f"  NOT mended: {text}", "bad") for text in report.left),
        table(("after the fault", ""), rows),
    ]
    if report.missing is not None:
        lines.append(paint(f"still missing: {report.missing}", "bad"))
    lines += [f"  {sample}" for sample in found.samples]
    if report.simulated:
        lines.append(
            "The engines are simulated: times to load and to answer are not those of models."
        )
    return "\n".join(lines)


def _bad(count: int) -> str:
    return paint(str(count), "bad") if count else "0"


def _count(value: int | None) -> str:
    return "not known" if value is None else str(value)


def _time(value: float | None) -> str:
    return paint("not in time", "bad") if value is None else seconds(value)
