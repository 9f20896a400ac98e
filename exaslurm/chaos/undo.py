"""What has been broken and is not mended yet: a file in the run directory, written before each
step, so that it outlives whoever broke it."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from exaslurm.core import codec
from exaslurm.errors import ExaslurmError, StateError
from exaslurm.rundir import RunDir
from exaslurm.util.files import make_private_dir, read_text, write_atomic
from exaslurm.util.process import is_alive, start_ticks

UNDO_SCHEMA: Literal["exaslurm/undo/1"] = "exaslurm/undo/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command that mends something; ``says`` what."""

    says: str
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """``chaos/<token>.json``: the steps, to be done last first, and the process that will."""

    schema: Literal["exaslurm/undo/1"] = UNDO_SCHEMA
    fault: str
    host: str
    pid: int
    start_ticks: int
    time_s: float
    steps: tuple[Step, ...] = ()


class Mending:
    """The steps of one run of a fault. ``run`` carries a command out."""

    def __init__(self, run_dir: RunDir, fault: str, run: Callable[[Sequence[str]], object]) -> None:
        self._directory = run_dir.chaos
        self._path = self._directory / f"{secrets.token_hex(4)}.json"
        self._run = run
        pid = os.getpid()
        self._record = Record(
            fault=fault,
            host=socket.gethostname(),
            pid=pid,
            start_ticks=start_ticks(pid) or 0,
            time_s=round(time.time(), 3),
        )

    def will(self, says: str, argv: Sequence[str]) -> None:
        """Promise a step, before that is done which it mends. StateError if it cannot be written
        down: then nothing must be broken."""
        make_private_dir(self._directory)
        self._record = replace(
            self._record, steps=(*self._record.steps, Step(says=says, argv=tuple(argv)))
        )
        write_atomic(self._path, codec.dumps(self._record, indent=1))

    def mend(self) -> tuple[list[str], list[str]]:
        """Do every step, last first: what was mended, and what could not be. What could not stays
        on record."""
        done, left = _mend(self._path, self._record, self._run)
        self._record = replace(self._record, steps=tuple(step for step, _ in reversed(left)))
        return done, [f"{step.says}: {why}" for step, why in left]


def mend_all(
    run_dir: RunDir, run: Callable[[Sequence[str]], object]
) -> tuple[list[str], list[str]]:
    """Mend what runs that have died have left behind. Faults of a living process of this host stay
    its own; those of another host are told about, and mended."""
    done: list[str] = []
    left: list[str] = []
    for path in sorted(run_dir.chaos.glob("[!.]*.json")):
        record = codec.loads(Record, read_text(path), where=str(path))
        here = record.host == socket.gethostname()
        if here and is_alive(record.pid, record.start_ticks):
            left.append(f"{record.fault}: process {record.pid} is at it, and mends it itself")
            continue
        mended, failed = _mend(path, record, run)
        done += mended
        left += [f"{step.says}: {why}" for step, why in failed]
    return done, left


def _mend(
    path: Path, record: Record, run: Callable[[Sequence[str]], object]
) -> tuple[list[str], list[tuple[Step, str]]]:
    done: list[str] = []
    left: list[tuple[Step, str]] = []
    for step in reversed(record.steps):
        why = _trouble(run, step)
        if why is None:
            done.append(step.says)
        else:
            left.append((step, why))
    try:
        if left:
            kept = replace(record, steps=tuple(step for step, _ in reversed(left)))
            write_atomic(path, codec.dumps(kept, indent=1))
        else:
            path.unlink(missing_ok=True)
    except (OSError, StateError):
        pass  # what is on record may be mended twice
    return done, left


def _trouble(run: Callable[[Sequence[str]], object], step: Step) -> str | None:
    """Carry one step out; why that failed, if it did."""
    try:
        run(step.argv)
    except ExaslurmError as error:
        return str(error)
    return None
