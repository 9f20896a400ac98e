"""The report of ``doctor`` for a person."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from exaslurm.cli.output import paint
from exaslurm.core.checks import Check
from exaslurm.doctor.model import HostReport, Report

_STYLES = {"pass": "good", "warn": "warn", "fail": "bad", "skip": "dim"}
_MANY = 6


def doctor_text(report: Report) -> str:
    """One line a check; what is the same on several hosts is said once."""
    logins = [host for host in report.hosts if host.role == "login"]
    nodes = [host for host in report.hosts if host.role == "node"]
    lines: list[str] = []
    for login in logins:
        lines += [paint(f"{login.host} (login node)", "bold"), *_lines([login])]
    if nodes:
        title = f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}: {_hosts(nodes)}"
        lines += [*([""] if lines else []), paint(title, "bold"), *_lines(nodes)]
    return "\n".join(lines)


def headline(report: Report) -> str:
    """What it comes to."""
    return (
        f"site {report.site}, {len(report.hosts)} host{'s' if len(report.hosts) > 1 else ''}: "
        f"{report.failed} failed, {report.warned} warned"
    )


def _lines(hosts: Sequence[HostReport]) -> list[str]:
    rows = list(_rows(hosts))
    width = max((len(name) for _, name, _, _ in rows), default=0)
    lines = []
    for outcome, name, value, remedy in rows:
        lines.append(f"{paint(outcome, _STYLES[outcome])}  {name:<{width}}  {value}")
        if remedy is not None:
            lines.append(f"      {'':<{width}}  remedy: {remedy}")
    return lines


def _rows(hosts: Sequence[HostReport]) -> Iterator[tuple[str, str, str, str | None]]:
    """Outcome, name, value, remedy. Hosts that passed a check share its line; of those that did
    not, each has one, unless they found the very same."""
    order: dict[tuple[str, str], list[tuple[HostReport, Check]]] = {}
    for host in hosts:
        for check in host.checks:
            order.setdefault((check.id, check.subject), []).append((host, check))
    for (ident, subject), found in order.items():
        name = f"{ident} {subject}".rstrip()
        groups: dict[tuple[str, str, str | None], list[HostReport]] = {}
        for host, check in found:
            quiet = check.outcome in ("pass", "skip")
            key = (check.outcome, "" if quiet else check.value, check.remedy)
            groups.setdefault(key, []).append(host)
        for (outcome, value, remedy), members in groups.items():
            values = [check.value for host, check in found if host in members]
            text = value or _common(values)
            where = "" if len(hosts) == 1 else f"{_hosts(members)}: "
            yield outcome, name, f"{where}{text}", remedy


def _common(values: Sequence[str]) -> str:
    different = list(dict.fromkeys(values))
    if len(different) == 1:
        return different[0]
    return f"{different[0]} ({len(different) - 1} more value{'s' if len(different) > 2 else ''})"


def _hosts(hosts: Sequence[HostReport]) -> str:
    names = [host.host for host in hosts]
    if len(names) <= _MANY:
        return ", ".join(names)
    return f"{', '.join(names[:_MANY])} and {len(names) - _MANY} more"
