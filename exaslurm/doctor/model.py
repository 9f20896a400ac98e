"""The outcome of an examination."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from exaslurm.core.checks import Check, NodeChecks
from exaslurm.core.uniform import compare

DOCTOR_SCHEMA: Literal["exaslurm/doctor/2"] = "exaslurm/doctor/2"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """All checks of one host. A node of a cell or partition is compared with the others."""

    host: str
    role: Literal["login", "node"]
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All hosts of one run of ``doctor``. ``failed`` and ``warned`` count checks."""

    schema: Literal["exaslurm/doctor/2"] = DOCTOR_SCHEMA
    site: str
    failed: int
    warned: int
    hosts: tuple[HostReport, ...]


def report(site: str, hosts: Sequence[HostReport]) -> Report:
    """The hosts' reports, counted."""
    outcomes = [check.outcome for host in hosts for check in host.checks]
    return Report(
        site=site,
        failed=outcomes.count("fail"),
        warned=outcomes.count("warn"),
        hosts=tuple(hosts),
    )


def compared(nodes: Sequence[NodeChecks]) -> list[HostReport]:
    """Reports of nodes: what each one found, and what comparing them adds."""
    more = compare(nodes)
    return [
        HostReport(host=node.host, role="node", checks=(*node.checks, *more[node.host]))
        for node in nodes
    ]
