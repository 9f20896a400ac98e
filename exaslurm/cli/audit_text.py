"""The audit log on a terminal: its records, and what a check of it found."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exaslurm.api.locate import find_run_dir
from exaslurm.cli.output import paint, result, result_json
from exaslurm.errors import AuditError, DeploymentError
from exaslurm.keys.secrets import read_secret
from exaslurm.router.audit_chain import chains
from exaslurm.router.audit_check import ChainReport, verify
from exaslurm.router.audit_read import newest


@dataclass(frozen=True, slots=True)
class AuditLog:
    """Where an audit log is; ``name`` is for people, ``key_file`` what its chain is made with."""

    name: str
    directory: Path
    key_file: Path | None

    @classmethod
    def find(cls, name: str, environ: Mapping[str, str], *, site: str | None) -> AuditLog:
        """The log of a deployment, or in a directory of its own. DeploymentError if there is
        none."""
        path = Path(name)
        if "/" in name and path.is_dir() and not (path / "gen").is_dir():
            log = cls(name, path.absolute(), None)
        else:
            run_dir = find_run_dir(name, environ, site=site)
            log = cls(run_dir.deployment, run_dir.audit, run_dir.internal_key)
        if not log.directory.is_dir() or not chains(log.directory):
            raise DeploymentError(
                f"{log.name} has no audit log in {log.directory}",
                remedy="routers write one from their start, unless the spec says "
                "gateway.audit: false",
            )
        return log


def show_records(
    log: AuditLog,
    *,
    lines: int,
    since_s: float,
    key: str | None,
    model: str | None,
    as_json: bool,
) -> None:
    """The last records of requests (and grants, and gaps) that fit; ``since_s`` is Unix time."""

    def wanted(record: dict[str, Any]) -> bool:
        if record.get("kind") == "gap":
            return key is None and model is None
        return (
            record.get("kind") in ("request", "grant")
            and (key is None or record.get("key") == key)
            and (model is None or record.get("model") == model)
        )

    records = newest(log.directory, lines, wanted, since_s=since_s)
    if as_json:
        result_json({"schema": "exaslurm/audit/1", "deployment": log.name, "records": records})
        return
    for record in records:
        result(_line(record))


def show_check(log: AuditLog, *, as_json: bool) -> None:
    """What a check of all files finds. AuditError if the log was changed."""
    secret = None if log.key_file is None else read_secret(log.key_file)
    reports = verify(log.directory, secret)
    problems = sum(len(report.problems) for report in reports)
    if as_json:
        result_json(
            {
                "schema": "exaslurm/audit-check/1",
                "deployment": log.name,
                "whole": problems == 0,
                "chains": [_chain(report) for report in reports],
            }
        )
    else:
        for report in reports:
            _show_chain(report)
    if problems:
        what = "1 finding" if problems == 1 else f"{problems} findings"
        raise AuditError(f"the audit log in {log.directory} is not as it was written: {what}")


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
    if record["kind"] == "grant":
        until = _stamp(int(record.get("expires_ms") or 0))
        words = [str(record.get(name)) for name in ("key", "model", "replica")]
        return _joined([_time(record), *words, f"may be asked directly until {until}"])
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
    return _joined(words)


def _joined(words: list[str]) -> str:
    # What clients choose is shown escaped: it must not reach the terminal's own language.
    return "  ".join(word if word.isprintable() else ascii(word) for word in words if word)


def _count(record: dict[str, Any], name: str) -> str:
    value = record.get(name)
    return "?" if value is None else str(value)


def _time(record: dict[str, Any]) -> str:
    return _stamp(int(record.get("time_ms") or 0))


def _stamp(time_ms: int) -> str:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time_ms // 1000))
    return f"{stamp}.{time_ms % 1000:03}Z"
