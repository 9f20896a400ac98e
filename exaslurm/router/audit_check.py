"""Finds what was done to audit logs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exaslurm.router.audit_chain import (
    GENESIS,
    ChainFiles,
    Head,
    Sealer,
    chains,
    derive_key,
    record_of,
    unseal,
)
from exaslurm.util.files import state_error

_HEAD_TRIES = 3
_HEAD_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a log. ``line`` is 0 where it is about the whole file. What is no
    ``problem`` is worth knowing, but was done by the writer itself and is accounted for."""

    path: Path
    line: int
    text: str
    problem: bool = True

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}" if self.line else str(self.path)
        return f"{where}: {self.text}"


@dataclass(slots=True)
class ChainReport:
    """One chain. ``seq`` and ``mac`` (hex) are its last record: kept elsewhere, they show later
    that everything up to it is still as it was."""

    name: str
    records: int = 0
    requests: int = 0
    lost: int = 0
    seq: int = 0
    mac: str = ""
    findings: list[Finding] = field(default_factory=list)

    @property
    def problems(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.problem]


def verify(directory: Path, secret: str | None) -> list[ChainReport]:
    """Check every chain in a directory, by the name of the chain. StateError if the directory
    cannot be read. A router may be writing meanwhile."""
    sealer = Sealer(derive_key(secret))
    try:
        checks = [_check(name, directory, sealer) for name in sorted(chains(directory))]
    except OSError as error:
        raise state_error("read", directory, error) from error
    for check in checks:
        _compare(check, checks)
    reports = [check.report for check in checks]
    return [report for report in reports if report.records or report.findings]


def _check(name: str, directory: Path, sealer: Sealer) -> _Check:
    while True:
        try:
            raw_head = _read_head(chains(directory).get(name, ChainFiles()).head, name, sealer)
            check = _Check(name, directory, sealer, raw_head)
            # Listed only now: the head is never ahead of the files.
            check.run(chains(directory).get(name, ChainFiles()))
        except FileNotFoundError:
            continue  # a router has just removed its oldest file: what it says of it comes later
        return check


def _compare(check: _Check, checks: list[_Check]) -> None:
    """What the chains say of each other: how far they were, and which old files are gone by
    intent."""
    report = check.report
    if check.late is not None:
        path, line, missing = check.late
        if max((other.pruned.get(report.name, 0) for other in checks), default=0) < missing:
            text = f"{_span(1, missing)} removed before this line"
            report.findings.insert(0, Finding(path, line, text))
    reports = {other.report.name: other.report for other in checks}
    for name, (seq, path) in check.others.items():
        known = reports.get(name)
        if known is None or (known.seq < seq and not known.problems):
            have = f"ends at {known.seq}" if known else "is gone"
            text = f"chain {name} had {seq} records when this was written, and {have}"
            report.findings.append(Finding(path, 0, text))


def _read_head(path: Path | None, name: str, sealer: Sealer) -> bytes | None:
    """The raw head. One that does not fit is read again: on a shared file system it may be seen
    half written."""
    if path is None:
        return None
    for _ in range(_HEAD_TRIES):
        raw = path.read_bytes()
        if Head.decode(raw, name, sealer) is not None:
            break
        time.sleep(_HEAD_PAUSE_S)
    return raw


class _Check:
    """Goes through one chain. Links are tried from the last record in order and from the line
    before, so that one change is one finding."""

    def __init__(self, name: str, directory: Path, sealer: Sealer, raw_head: bytes | None) -> None:
        self.report = ChainReport(name)
        self.others: dict[str, tuple[int, Path]] = {}
        self._directory = directory
        self._sealer = sealer
        self._raw_head = raw_head
        self._head = Head.decode(raw_head, name, sealer) if raw_head else None
        self._tip = GENESIS
        self._before = GENESIS
        self._unreadable = 0
        self.pruned: dict[str, int] = {}
        self.late: tuple[Path, int, int] | None = None
        self._place = (directory, 0)

    def run(self, chain: ChainFiles) -> None:
        for path in chain.files:
            with path.open("rb") as file:
                line = file.readline()
                while line:
                    following = file.readline()
                    self._place = (path, self._place[1] + 1 if self._place[0] == path else 1)
                    if not self._line(line, following):
                        return
                    line = following
        self._end(chain)

    def _line(self, line: bytes, following: bytes) -> bool:
        """False if going on makes no sense."""
        report = self.report
        if not line.endswith(b"\n"):
            self._find(
                "the last record is unfinished: its writer was killed, or is at it", note=True
            )
            return True
        parts = unseal(line)
        record = record_of(parts[0]) if parts else None
        if parts is None or record is None:
            self._unreadable += 1
            self._find("edited: this is no record")
            return True
        body, mac = parts
        report.records += 1
        seq: int = record["seq"]
        expected = report.seq + 1
        if report.records == 1 and seq > 1:
            self._start_late(record)
            expected = report.seq + 1
        linked = mac in (self._sealer.mac(self._tip, body), self._sealer.mac(self._before, body))
        self._before = mac
        if not linked:
            if self._has_other_key(record):
                return False
            if self._is_followed_by(expected + 1, mac, following):
                seq = expected  # even if the edited line has another number
        if seq < expected:
            self._find(f"record {seq} is out of place: moved, copied or put in")
            return True
        if seq > expected + self._unreadable:
            self._find(f"{_span(expected, seq - 1)} removed before this line")
        elif seq == expected and not linked:
            self._find(f"record {seq} was edited")
        self._unreadable = 0
        report.seq, self._tip = seq, mac
        if self._head is not None and seq == self._head.seq and mac != self._head.mac:
            self._find(f"record {seq} is not the one that the head names")
        self._look_at(record)
        return True

    def _start_late(self, record: dict[str, Any]) -> None:
        """The oldest files are gone. A file says what it follows; whether what came before was
        removed by the writer itself, the chain says further on."""
        previous = record.get("previous")
        if record.get("kind") != "open" or not isinstance(previous, str):
            return
        self._tip = previous.encode()
        self.report.seq = record["seq"] - 1
        self.late = (*self._place, self.report.seq)

    def _is_followed_by(self, seq: int, mac: bytes, line: bytes) -> bool:
        parts = unseal(line)
        record = record_of(parts[0]) if parts else None
        if parts is None or record is None or record["seq"] != seq:
            return False
        return self._sealer.mac(mac, parts[0]) == parts[1]

    def _look_at(self, record: dict[str, Any]) -> None:
        kind = record.get("kind")
        if kind == "request":
            self.report.requests += 1
        elif kind == "gap":
            lost = record.get("lost")
            self.report.lost += lost if isinstance(lost, int) else 0
            self._find(
                f"{lost} requests could not be recorded: the disk did not keep up", note=True
            )
        elif kind == "pruned":
            through = record.get("through")
            if isinstance(through, dict):
                self.pruned.update(_counts(through))
        elif kind == "open":
            if record.get("chain") != self.report.name:
                self._find(f"the file belongs to chain {record.get('chain')}")
            if record.get("head") in ("damaged", "missing"):
                text = (
                    f"the head was {record['head']} when a router started here: records before "
                    "this line may have been cut off"
                )
                self._find(text)
            others = record.get("others")
            if isinstance(others, dict):
                path = self._place[0]
                self.others.update({name: (seq, path) for name, seq in _counts(others)})

    def _has_other_key(self, record: dict[str, Any]) -> bool:
        other = record.get("key_id")
        if record.get("kind") != "open" or other in (None, self._sealer.key_id):
            return False
        text = f"made with another key ({other}, not {self._sealer.key_id}): cannot be checked"
        self._find(text)
        return True

    def _end(self, chain: ChainFiles) -> None:
        report = self.report
        report.mac = self._tip.decode() if report.seq else ""
        if self._head is not None and self._head.lost:
            report.lost += self._head.lost
            self._find(
                f"{self._head.lost} requests after this line could not be recorded", note=True
            )
        head = chain.head or self._directory / f"{report.name}.head"
        if self._head is not None and self._head.seq > report.seq:
            self._find(f"{_span(report.seq + 1, self._head.seq)} removed after this line")
        elif self._head is None and (self._raw_head or chain.files):
            what = "was edited, or is of another key" if self._raw_head else "is missing"
            self._place = (head, 0)
            self._find(f"the head {what}: records at the end may have been removed")

    def _find(self, text: str, *, note: bool = False) -> None:
        self.report.findings.append(Finding(*self._place, text, problem=not note))


def _span(first: int, last: int) -> str:
    if first == last:
        return f"record {first} was"
    return f"records {first} to {last} were"


def _counts(data: dict[str, Any]) -> Iterator[tuple[str, int]]:
    return ((name, number) for name, number in data.items() if isinstance(number, int))
