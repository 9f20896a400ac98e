"""Why a node does not report, from what its init wrote. Reads files: run it on the file thread."""

from __future__ import annotations

from pathlib import Path

_TAIL_BYTES = 2048


def why_silent(log: Path) -> str:
    """A sentence about a node that has not reported, from the end of its init's log."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return f"its step has not started there: no {log.name}"
    except OSError as error:
        return f"{log} cannot be read: {error.strerror}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return f"its step started and said nothing ({log})"
    return f"its log ends with: {lines[-1][:300]} ({log})"
