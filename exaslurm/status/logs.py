"""The log files of a deployment: which there are, and their last words."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from exaslurm.errors import DeploymentError
from exaslurm.rundir import RunDir

_TAIL_BYTES = 16384
_ERROR = "exaslurm: error: "
# A line of init or agent itself, as opposed to the end of a traceback or a word of the system.
# srun's remark on clusters without task/affinity, where it is left to us to bind.
_HARMLESS = "cluster configuration lacks support for cpu binding"
_OURS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d (init|agent): ")


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log file; ``label`` is its path below the generation's ``logs`` (or ``router``)."""

    label: str
    path: Path


def all_logs(run_dir: RunDir) -> list[LogFile]:
    """Every log of the generation that runs, of a newer one that may come up beside it (the names
    of their jobs differ), and the router's, oldest change first."""
    found: list[LogFile] = []
    for generation in {run_dir.current(), run_dir.latest()} - {None}:
        assert generation is not None
        root = generation.path / "logs"
        found += [
            LogFile(str(path.relative_to(root)), path)
            for path in root.rglob("*")
            if path.is_file() and not path.name.startswith(".")
        ]
    if run_dir.router_log.exists():
        found.append(LogFile("router", run_dir.router_log))
    return sorted(found, key=lambda log: (_changed(log.path), log.label))


def select_logs(
    run_dir: RunDir,
    *,
    replica: str | None = None,
    node: str | None = None,
    controller: bool = False,
    batch: bool = False,
    router: bool = False,
) -> list[LogFile]:
    """The logs that were asked for (all of them if nothing was). DeploymentError, with what
    there is, if nothing fits."""
    logs = all_logs(run_dir)
    if replica is not None:
        chosen = [log for log in logs if _is_replica(log, replica)]
    elif node is not None:
        chosen = [log for log in logs if log.path.name.split(".")[0] == node]
    elif controller:
        chosen = [log for log in logs if "controller" in log.path.name]
    elif batch:
        chosen = [log for log in logs if "batch" in log.path.name]
    elif router:
        chosen = [log for log in logs if log.label == "router"]
    else:
        chosen = logs
    if not chosen:
        known = ", ".join(log.label for log in logs) or "none"
        raise DeploymentError(
            f"deployment {run_dir.deployment} has no such log (yet)", remedy=f"logs: {known}"
        )
    return chosen


def _is_replica(log: LogFile, wanted: str) -> bool:
    """``c000-r0007``, ``r0007``, ``7``."""
    if log.path.parent.name != "replicas":
        return False
    name = log.path.stem.partition(".")[0]  # c000-r0007.1 is the part on its second node
    number = name.rpartition("-r")[2]
    if wanted.isdigit():
        return number.isdigit() and int(number) == int(wanted)
    return wanted in (name, f"r{number}")


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of a file (of its last 16 KiB per 100 lines asked for)."""
    size = _TAIL_BYTES * max(1, lines // 100 + 1)
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - size))
        text = file.read().decode("utf-8", errors="replace")
    return text.splitlines()[-lines:] if lines else []


def router_error(run_dir: RunDir) -> str | None:
    """The error that the last router of this log ended with (a remedy may follow it)."""
    try:
        lines = tail(run_dir.router_log, 2)
    except OSError:
        return None
    errors = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
    return errors[-1] if errors else None


def last_words(directory: Path) -> str | None:
    """The most telling last line in a cell's log directory; None if there is none.

    A node whose init crashed says why better than the batch script, which only sees its step end.
    """
    try:
        for path in sorted(directory.glob("*.init.log")):
            line = _last(path)
            if line is not None and not _OURS.match(line):
                return f"{path.name.removesuffix('.init.log')}: {line}"
        for path in sorted(directory.glob("batch*"), key=_changed, reverse=True):
            line = _last(path)
            if line is not None:
                return line
    except OSError:
        return None
    return None


def _last(path: Path) -> str | None:
    lines = [line.strip() for line in tail(path, 20)]
    lines = [line for line in lines if line and _HARMLESS not in line]
    return lines[-1] if lines else None
