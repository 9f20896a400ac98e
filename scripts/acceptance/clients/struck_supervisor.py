"""A supervisor that is killed or stopped at one of its steps, by itself; one that is not killed
ends with the deployment at rest. Prints a line for each step that changes something outside of it,
as it takes it, and one for each round that was refused because somebody else had the deployment.

Argument: {"run_dir", "at": [name, nth] or null, "signal": "SIGKILL" or "SIGSTOP", "flag" or null,
"limit_s"}; its pid is written to ``flag`` first. The deployment is at rest when every cell has one
job that serves, of the newest turn, and nothing else runs.
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
at = tuple(given["at"]) if given["at"] else None
seen: Counter[str] = Counter()
POLL_S = 1.0
LOOKS_AT_REST = 3


def step(name):
    seen[name] += 1
    print(json.dumps([name, seen[name]]), flush=True)
    if at == (name, seen[name]):
        if given.get("flag"):
            Path(given["flag"]).write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.Signals[given["signal"]])


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
around(records, "add_history", "history")
around(act, "remove_record", "registry")
around(act, "write_atomic", "script")


def at_rest(world):
    for cell in world.cells:
        turns = cell.turns
        if any(turn.record not in ("submitted", "stopped", "refused") for turn in turns):
            return False
        if [turn for turn in turns if turn.record == "submitted"] != [turns[-1]]:
            return False
        if not (turns[-1].serving and turns[-1].served_s):
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
