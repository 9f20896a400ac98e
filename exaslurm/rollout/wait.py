"""Waiting for the end of a rollout, with what happens on the way."""

from __future__ import annotations

import time
from collections.abc import Callable

from exaslurm.core.rollout import Rollout
from exaslurm.errors import NotReadyError, WaitTimeout
from exaslurm.rundir import RunDir
from exaslurm.submit.records import read_rollout
from exaslurm.submit.talk import Talk, quiet

PAUSE_S = 1.0


def wait_over(
    run_dir: RunDir,
    candidate: int,
    *,
    timeout_s: float,
    talk: Talk = quiet,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Rollout:
    """The rollout to this generation when it is over, done or undone. WaitTimeout after
    ``timeout_s``; NotReadyError if another one has taken its place."""
    deadline = clock() + timeout_s
    said = ""
    while True:
        found = read_rollout(run_dir)
        if found is None or found.candidate != candidate:
            raise NotReadyError(f"nothing is known any more of the rollout to {candidate}")
        text = describe(found)
        if text != said:
            talk(text)
            said = text
        if found.is_over:
            return found
        if clock() >= deadline:
            raise WaitTimeout(
                f"the rollout of {run_dir.deployment} is not over after {timeout_s:.0f} s: {text}",
                remedy=f"it goes on: exaslurm status {run_dir.deployment}; "
                f"exaslurm rollback {run_dir.deployment} takes it back",
            )
        sleep(PAUSE_S)


def describe(rollout: Rollout) -> str:
    """Where it stands, in a sentence."""
    ways = f"generation {rollout.stable} -> {rollout.candidate}"
    why = f": {rollout.reason}" if rollout.reason else ""
    note = f" ({rollout.note})" if rollout.note else ""
    match rollout.state:
        case "rising":
            wanted = rollout.steps_percent[rollout.step]
            text = (
                f"step {rollout.step + 1} of {len(rollout.steps_percent)} ({wanted:g} %), "
                f"{rollout.share_percent:g} % of the requests go to the new version"
                if rollout.names
                else f"cell {rollout.cells} goes over"
            )
            return f"{ways}: {text}{note}"
        case "finishing":
            return f"{ways}: everything goes to the new one, what is left of the old one ends{note}"
        case "done":
            return f"{ways}: done"
        case "undoing":
            return f"{ways}: stopped{why}; it is taken back"
        case "undone":
            return f"{ways}: taken back{why}"
