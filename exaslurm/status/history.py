"""What was done to a deployment: ``history.jsonl``, read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from exaslurm.rundir import RunDir
from exaslurm.util.files import is_there, read_text

_KNOWN = ("time_s", "user", "verb", "generation", "plan_hash", "jobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One line. ``by``: the process that did it for the user, where it was not their command;
    ``jobs``: ids (or states of submissions) by cell; ``details``: what else there is to say."""

    time_s: float
    user: str
    verb: str
    generation: int
    plan_hash: str
    jobs: Mapping[str, str] = field(default_factory=dict)
    by: str | None = None
    details: Mapping[str, str] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """Everything to say of it in a line."""
        parts = [f"{cell}: {job}" for cell, job in self.jobs.items()]
        parts += [
            text if key == "reason" else f"{key} {text}"
            for key, text in self.details.items()
            if key != "cell" or not self.jobs
        ]
        return "; ".join(parts)


def read_history(run_dir: RunDir) -> tuple[HistoryEntry, ...]:
    """All entries, oldest first. A line that cannot be understood (half written at a crash) is left
    out. StateError if the file cannot be read."""
    if not is_there(run_dir.history):
        return ()
    entries = map(_entry, read_text(run_dir.history).splitlines())
    return tuple(entry for entry in entries if entry is not None)


def _entry(line: str) -> HistoryEntry | None:
    try:
        data: dict[str, Any] = json.loads(line)
        details = {key: str(value) for key, value in data.items() if key not in _KNOWN}
        by = details.pop("by", None)
        return HistoryEntry(
            time_s=float(data["time_s"]),
            user=str(data["user"]),
            verb=str(data["verb"]),
            generation=int(data["generation"]),
            plan_hash=str(data["plan_hash"]),
            jobs={str(cell): str(job) for cell, job in data.get("jobs", {}).items()},
            by=by,
            details=details,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
