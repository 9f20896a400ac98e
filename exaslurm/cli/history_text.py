"""A deployment's history as text for a person."""

from __future__ import annotations

import time
from collections.abc import Sequence

from exaslurm.cli.output import table
from exaslurm.status.history import HistoryEntry


def history_text(entries: Sequence[HistoryEntry]) -> str:
    """One line an entry: when, who, what, of which generation and plan, and what came of it."""
    rows = [
        [
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.time_s)),
            entry.user if entry.by is None else f"{entry.user} ({entry.by.split()[0]})",
            entry.verb,
            str(entry.generation),
            entry.plan_hash[:8] or "-",
            entry.reason or "-",
        ]
        for entry in entries
    ]
    return table(["TIME", "WHO", "WHAT", "GEN", "PLAN", "OUTCOME"], rows)
