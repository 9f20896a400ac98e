"""A step with a process in the place of srun."""

from __future__ import annotations

import os
import signal

from exaslurm.bootstrap.step import STOP, Step


async def test_a_stop_while_it_is_started_is_not_lost() -> None:
    step = Step("component 0", ["sleep", "60"], lambda _: None)
    step.signal(signal.SIGUSR1)
    step.signal(STOP)
    await step.start(os.environ)
    assert await step.wait() == -STOP


async def test_another_signal_before_it_runs_does_not_end_it() -> None:
    said: list[str] = []
    step = Step("component 0", ["sh", "-c", "echo up >&2; exec sleep 0.2"], said.append)
    step.signal(signal.SIGUSR1)
    await step.start(os.environ)
    assert await step.wait() == 0
    assert said == ["component 0: up"]
