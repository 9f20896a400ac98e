"""What submit writes into the run directory, and reads back."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from exaslurm.core import codec
from exaslurm.core.marker import BootstrapMarker
from exaslurm.core.plan import Plan
from exaslurm.core.scale import Scale, Targets
from exaslurm.core.submission import Desired, Submission
from exaslurm.errors import DeploymentError, StateError
from exaslurm.rundir import GenerationDir, RunDir
from exaslurm.util.files import append_line, read_text, state_error, write_atomic
from exaslurm.util.user import user_and_home


def write_submission(generation: GenerationDir, submission: Submission) -> None:
    """Replace the record of a cell's submission."""
    write_atomic(generation.submission(submission.cell), codec.dumps(submission, indent=1))


def read_submissions(
    generation: GenerationDir,
    *,
    damaged: Callable[[StateError], None] | None = None,
    must_exist: bool = False,
    ended: dict[str, Submission] | None = None,
) -> dict[str, Submission]:
    """Records by cell, in the order of their names; empty if nothing was ever submitted, which is
    a StateError where ``must_exist``.

    What cannot be read is a StateError, or, where ``damaged`` is given, handed to it and left out.
    ``ended`` holds those that are over, which do not change any more, from one call to the next:
    of a deployment that lives for months there are thousands.
    """
    place = generation.submissions
    try:
        names = sorted(os.listdir(place))
    except FileNotFoundError as error:
        if must_exist:
            raise state_error("list", place, error) from error
        return {}
    except OSError as error:
        if damaged is None:
            raise state_error("list", place, error) from error
        damaged(state_error("list", place, error))
        return {}
    paths = [place / name for name in names if name.endswith(".json") and name[0] != "."]
    over = {} if ended is None else ended
    records = (over.get(path.stem) or _read_submission(path, damaged) for path in paths)
    found = {record.cell: record for record in records if record is not None}
    over.update({cell: record for cell, record in found.items() if record.state == "stopped"})
    return found


def _read_submission(path: Path, damaged: Callable[[StateError], None] | None) -> Submission | None:
    try:
        return codec.loads(Submission, read_text(path), where=str(path))
    except StateError as error:
        if damaged is None:
            raise
        damaged(error)
        return None


def require_here(generation: GenerationDir, here: str) -> None:
    """DeploymentError if the controllers can be asked on another host only (see
    ``Submission.is_elsewhere``), StateError if a record cannot be read."""
    for item in read_submissions(generation).values():
        if item.is_elsewhere(here):
            raise DeploymentError(
                f"deployment {item.deployment!r} runs on {item.host}, and listens there only",
                remedy=f"run this on {item.host}",
            )


def read_plan(generation: GenerationDir) -> Plan | None:
    """The plan of a generation; None if the submit that made it did not get that far."""
    if not generation.plan.exists():
        return None
    return codec.loads(Plan, read_text(generation.plan), where=str(generation.plan))


def read_marker(generation: GenerationDir, cell: str) -> BootstrapMarker | None:
    """What the first process of a cell's job wrote down; None if it did not come that far."""
    path = generation.bootstrap_marker(cell)
    try:
        return codec.loads(BootstrapMarker, read_text(path), where=str(path))
    except StateError:
        return None


def write_desired(run_dir: RunDir, *, run: bool, generation: int) -> None:
    """Say what the owner wants; routers and supervisors follow this file."""
    write_atomic(run_dir.desired, codec.dumps(Desired(run=run, generation=generation)) + "\n")


def is_wanted(run_dir: RunDir) -> bool:
    """Whether the owner wants the deployment to run; true if nobody has said anything yet."""
    desired = run_dir.read_desired()
    return desired is None or desired.run


def end_rollout(run_dir: RunDir, reason: str) -> None:
    """Whatever rollout is under way is so no more: its jobs end as all others. StateError."""
    rollout = run_dir.read_rollout()
    if rollout is not None and not rollout.is_over:
        over = replace(rollout, state="undone", reason=reason, note=None)
        write_atomic(run_dir.rollout, codec.dumps(over, indent=1))


def write_scale(run_dir: RunDir, scale: Scale | None) -> None:
    """Say how many replicas are wanted; None: all that are planned."""
    if scale is None:
        run_dir.scale.unlink(missing_ok=True)
    else:
        write_atomic(run_dir.scale, codec.dumps(scale, indent=1))


def write_targets(generation: GenerationDir, turn: str, counts: Mapping[str, int] | None) -> None:
    """Say with how many replicas of each shard a job of a cell begins; None: with all."""
    path = generation.targets(turn)
    if counts is None:
        path.unlink(missing_ok=True)
    else:
        write_atomic(path, codec.dumps(Targets(replicas=counts)) + "\n")


def add_history(
    run_dir: RunDir,
    verb: str,
    *,
    generation: int,
    plan_hash: str,
    submissions: Sequence[Submission] = (),
    extra: Mapping[str, str] | None = None,
) -> None:
    """One line in history.jsonl: who did what when, and which jobs came of it."""
    entry = {
        "time_s": round(time.time(), 3),
        "user": _user(),
        "verb": verb,
        "generation": generation,
        "plan_hash": plan_hash,
        "jobs": {item.cell: item.job_id or item.state for item in submissions},
        **(extra or {}),
    }
    append_line(run_dir.history, json.dumps(entry, sort_keys=True))


def _user() -> str:
    return user_and_home(os.environ)[0]
