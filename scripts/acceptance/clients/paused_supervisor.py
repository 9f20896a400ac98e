"""A supervisor that stops itself (SIGSTOP) at one of its steps and goes on when it is woken, until
the deployment is at rest. Prints a line for each step, and one for each round that was refused
because somebody else had the deployment by then.

Argument: {"run_dir", "pause": [name, nth], "flag", "limit_s"}; its pid is written to ``flag``
before it stops.
"""

import json
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from exaslurm.errors import ExaslurmError, TakenOver
from exaslurm.rundir import RunDir
from exaslurm.slurm.client import Slurm
from exaslurm.submit import records
from exaslurm.supervisor import act
from exaslurm.supervisor.__main__ import make

given = json.loads(sys.argv[1])
pause = tuple(given["pause"])
seen: Counter[str] = Counter()
POLL_S = 1.0
LOOKS_AT_REST = 3


def step(name):
    seen[name] += 1
    print(json.dumps([name, seen[name]]), flush=True)
    if pause == (name, seen[name]):
        Path(given["flag"]).write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)


def around(place, attribute, label):
    function = getattr(place, attribute)

    def wrapped(*arguments, **options):
        step(f"before {label}")
        result = function(*arguments, **options)
        step(f"after {label}")
        return result

    setattr(place, attribute, wrapped)


os.umask(0o077)
supervisor = make(RunDir(Path(given["run_dir"])), dict(os.environ))
around(Slurm, "submit", "sbatch")
around(Slurm, "cancel", "scancel")
around(act.HttpControllers, "drain", "drain")
around(act.HttpControllers, "stop", "stop")
around(records, "write_submission", "submission")


def at_rest(world):
    for cell in world.cells:
        live = [turn for turn in cell.turns if turn.record == "submitted"]
        if live != [cell.turns[-1]] or not live[0].serving or not live[0].served_s:
            return False
    return True


quiet, deadline = 0, time.monotonic() + given["limit_s"]
while quiet < LOOKS_AT_REST:
    if time.monotonic() > deadline:
        sys.exit(f"not at rest after {given['limit_s']} s")
    before = sum(seen.values())
    try:
        world = supervisor.round()
        quiet = quiet + 1 if at_rest(world) and sum(seen.values()) == before else 0
    except TakenOver as error:
        print(json.dumps(["refused", str(error)]), flush=True)
    except ExaslurmError as error:
        print(json.dumps(["failed", str(error)]), flush=True)
    time.sleep(POLL_S)
