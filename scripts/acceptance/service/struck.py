"""Supervisors that are killed or paused at one of their steps, and those that come after them."""

from __future__ import annotations

import json
from typing import Literal

from acceptance.lab import HOME, ROOT, Done, Lab

LIMIT_S = 400
Step = tuple[str, int]


def supervise(
    lab: Lab,
    deployment: str,
    at: Step | None = None,
    signal: Literal["SIGKILL", "SIGSTOP"] = "SIGKILL",
    *,
    flag: str | None = None,
) -> Done:
    """A supervisor on the login node, until the deployment is at rest or it is struck."""
    run_dir = f"{HOME}/exaslurm/{deployment}"
    given = {"run_dir": run_dir, "at": at, "signal": signal, "flag": flag, "limit_s": LIMIT_S}
    program = (ROOT / "scripts/acceptance/clients/struck_supervisor.py").read_text()
    words = (f"{lab.env}/bin/python", "-", json.dumps(given))
    return lab.on("login", *words, text=program, timeout_s=LIMIT_S + 60)


def steps(text: str) -> list[Step]:
    """The steps among what a supervisor has printed."""
    found = (json.loads(row) for row in text.splitlines())
    return [(name, nth) for name, nth in found if isinstance(nth, int)]
