"""The outcome of checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DOCTOR_SCHEMA: Literal["exaslurm/doctor/1"] = "exaslurm/doctor/1"

Outcome = Literal["pass", "warn", "fail", "skip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at: ``value`` is what was found, ``remedy`` what to do."""

    name: str
    outcome: Outcome
    value: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All checks of one run on one host."""

    schema: Literal["exaslurm/doctor/1"] = DOCTOR_SCHEMA
    site: str
    host: str
    checks: tuple[Check, ...]

    @property
    def failed(self) -> int:
        return sum(check.outcome == "fail" for check in self.checks)

    @property
    def warned(self) -> int:
        return sum(check.outcome == "warn" for check in self.checks)


def passed(name: str, value: str) -> Check:
    return Check(name=name, outcome="pass", value=value)


def warned(name: str, value: str, remedy: str) -> Check:
    return Check(name=name, outcome="warn", value=value, remedy=remedy)


def failed(name: str, value: str, remedy: str) -> Check:
    return Check(name=name, outcome="fail", value=value, remedy=remedy)


def skipped(name: str, value: str) -> Check:
    return Check(name=name, outcome="skip", value=value)
