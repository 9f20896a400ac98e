"""Waiting for the end of a rollout, with what happens on the way."""

from __future__ import annotations

import time
from collections.abc import Callable

from exaslurm.core.rollout import Rollout
from exaslurm.errors import NotReadyError, StateError, WaitTimeout
from exaslurm.rundir import RunDir
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
    """The rollout to this generation when it is over, done or undone; as long as that cannot be
    read, it is waited for. WaitTimeout after ``timeout_s``; NotReadyError if another one has taken
    its place."""
    deadline = clock() + timeout_s
    said, found = "", None
    while True:
        try:
            found = run_dir.read_rollout()
            if found is None or found.candidate != candidate:
                raise NotReadyError(f"nothing is known any more of the rollout to {candidate}")
            text, is_over = found.sentence, found.is_over
        except StateError as error:  # a file system that is away comes back
            text, is_over = str(error), False
        if text != said:
            talk(text)
            said = text
        if found is not None and is_over:
            return found
        if clock() >= deadline:
            raise WaitTimeout(
                f"the rollout of {run_dir.deployment} is not over after {timeout_s:.0f} s: {text}",
                remedy=f"it goes on: exaslurm status {run_dir.deployment}; "
                f"exaslurm rollback {run_dir.deployment} takes it back",
            )
        sleep(PAUSE_S)
