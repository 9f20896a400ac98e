"""The Slurm client of a simulation: the real one, with commands that the simulation answers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from exaslurm.simulate import wire
from exaslurm.slurm.client import Slurm
from exaslurm.slurm.command import Answer
from exaslurm.util.clock import Clock

SOCKET = "EXASLURM_SIMULATED_SLURM"
_ANSWER_S = 30.0


class SimulatedSlurm(Slurm):
    """Asks the simulated controller that listens on a socket; all that the real client does with
    answers, this one does too."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        clock = Clock.of(environ)
        super().__init__(environ, look_up_s=clock.machine_s(30.0), pause_s=clock.machine_s(2.0))
        self._path = Path(environ[SOCKET])

    def _run(self, argv: Sequence[str], timeout_s: float | None = None) -> Answer:
        self.calls[argv[0]] = self.calls.get(argv[0], 0) + 1
        script = ""
        if argv[0] == "sbatch" and os.path.isfile(argv[-1]):
            script = Path(argv[-1]).read_text(encoding="utf-8")
        question = {"argv": list(argv), "script": script, "pid": os.getpid()}
        try:
            said = wire.ask(self._path, question, timeout_s=timeout_s or _ANSWER_S)
        except TimeoutError:
            return Answer(tuple(argv), None, "", "no answer in time")
        except OSError as error:
            complaint = f"{argv[0]}: error: Unable to contact slurm controller ({error})"
            return Answer(tuple(argv), 1, "", complaint)
        return Answer(tuple(argv), said["code"], said["stdout"], said["stderr"])
