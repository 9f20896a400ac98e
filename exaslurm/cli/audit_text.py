"""The audit log on a terminal: its records, and what a check of it found."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from exaslurm.cli.output import paint, result, result_json
from exaslurm.errors import AuditError, DeploymentError
from exaslurm.keys.secrets import read_secret
from exaslurm.router.audit_check import ChainReport, verify
from exaslurm.router.audit_read import newest
from exaslurm.rundir import RunDir


def show_records(
    run_dir: RunDir,
    *,
    lines: int,
    since_s: float,
    key: str | None,
    model: str | None,
    as_json: bool,
) -> None:
    """The last records of requests (and of gaps in them) that fit; ``since_s`` is Unix time."""

    def wanted(record: dict[str, Any]) -> bool:
        if record.get("kind") == "gap":
            return key is None and model is None
        return (
            record.get("kind") == "request"
            and (key is None or record.get("key") == key)
            and (model is None or record.get("model") == model)
        )

    _require(run_dir)
    records = newest(run_dir.audit, lines, wanted, since_s=since_s)
    if as_json:
        result_json(
            {"schema": "exaslurm/audit/1", "deployment": run_dir.deployment, "records": records}
        )
        return
    for record in records:
        result(_line(record))


def show_check(run_dir: RunDir, *, as_json: bool) -> None:
    """What a check of all files finds. AuditError if the log was changed."""
    _require(run_dir)
    reports = verify(run_dir.audit, read_secret(run_dir.internal_key))
    problems = sum(len(report.problems) for report in reports)
    if as_json:
        result_json(
            {
                "schema": "exaslurm/audit-check/1",
                "deployment": run_dir.deployment,
                "whole": problems == 0,
                "chains": [_chain(report) for report in reports],
            }
        )
    else:
        for report in reports:
            _show_chain(report)
    if problems:
        what = "1 finding" if problems == 1 else f"{problems} findings"
        raise AuditError(f"the audit log in {run_dir.audit} is not as it was written: {what}")


def _require(run_dir: RunDir) -> None:
    if not run_dir.audit.is_dir():
        raise DeploymentError(
            f"deployment {run_dir.deployment} has no audit log in {run_dir.audit}",
            remedy="routers write one from their start, unless the spec says gateway.audit: false",
        )


def _show_chain(report: ChainReport) -> None:
    lost = f", {report.lost} lost" if report.lost else ""
    result(
        f"{report.name}: {report.records} records, {report.requests} requests{lost}; "
        f"last {report.seq} {report.mac}"
    )
    for finding in report.findings:
        result(f"  {paint(str(finding), 'bad' if finding.problem else 'dim')}")


def _chain(report: ChainReport) -> dict[str, Any]:
    findings = [
        {**dataclasses.asdict(finding), "path": str(finding.path)} for finding in report.findings
    ]
    return {**dataclasses.asdict(report), "findings": findings}


def _line(record: dict[str, Any]) -> str:
    if record["kind"] == "gap":
        return f"{_time(record)}  {record.get('lost')} requests could not be recorded"
    tokens = f"{_count(record, 'prompt_tokens')}+{_count(record, 'completion_tokens')} tokens"
    version = record.get("version")
    words = [
        _time(record),
        str(record.get("key") or "-"),
        f"{record.get('model')}@{version}" if version else str(record.get("model")),
        str(record.get("replica") or "-"),
        str(record.get("status")),
        tokens,
        f"{float(record.get('duration_ms') or 0) / 1000:.3f} s",
        str(record.get("cause") or ""),
        str(record.get("id")),
    ]
    # What clients choose is shown escaped: it must not reach the terminal's own language.
    return "  ".join(word if word.isprintable() else ascii(word) for word in words if word)


def _count(record: dict[str, Any], name: str) -> str:
    value = record.get(name)
    return "?" if value is None else str(value)


def _time(record: dict[str, Any]) -> str:
    time_ms = int(record.get("time_ms") or 0)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time_ms // 1000))
    return f"{stamp}.{time_ms % 1000:03}Z"
