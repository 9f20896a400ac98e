"""``python -m exaslurm.supervisor --run-dir DIR``: in the foreground, or under a gateway."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from exaslurm.autoscale.manager import AutoscaleManager
from exaslurm.errors import DeploymentError, ExaslurmError, ExitCode
from exaslurm.rollout.manager import RolloutManager
from exaslurm.rundir import RunDir
from exaslurm.slurm.client import Slurm
from exaslurm.submit import records
from exaslurm.submit.submit import template_dirs_for
from exaslurm.supervisor.act import Actor
from exaslurm.supervisor.leftovers import Leftovers
from exaslurm.supervisor.loop import Manager, Supervisor
from exaslurm.supervisor.observe import Observer
from exaslurm.supervisor.own_jobs import OwnJobs
from exaslurm.supervisor.rolling import Rolling
from exaslurm.supervisor.routers import LostRouters
from exaslurm.supervisor.scaling import Scaling
from exaslurm.supervisor.wall_time import CalendarWatch
from exaslurm.util.clock import MACHINE, Clock
from exaslurm.util.logthread import LogThread
from exaslurm.util.malloc import Option, set_malloc

log = logging.getLogger("exaslurm.supervisor")


def make(
    run_dir: RunDir,
    environ: Mapping[str, str],
    *,
    slurm: Slurm | None = None,
    clock: Clock = MACHINE,
) -> Supervisor:
    """A supervisor, with the real Slurm unless told otherwise. ExaslurmError if the deployment
    cannot be read."""
    wanted = run_dir.require().current()
    plan = records.read_plan(wanted) if wanted is not None else None
    if plan is None:
        raise DeploymentError(f"{run_dir.path} holds no plan", remedy="submit it first")
    if plan.layout == "local":
        raise DeploymentError(
            f"{plan.deployment} runs without Slurm: there are no jobs to look after",
            remedy="a supervisor is for sites with Slurm",
        )
    slurm = slurm or Slurm(environ)
    dirs = template_dirs_for(plan, environ)
    actor = Actor(
        run_dir=run_dir, slurm=slurm, environ=environ, template_dirs=dirs, clock=clock.wall
    )
    managers: list[Manager] = [
        Rolling(RolloutManager(run_dir=run_dir)),
        Scaling(AutoscaleManager(run_dir=run_dir), clock.monotonic),
        Leftovers(run_dir),
        LostRouters(run_dir=run_dir, monotonic=clock.monotonic),
        OwnJobs(run_dir, slurm, monotonic=clock.monotonic),
    ]
    calendar = CalendarWatch(slurm, clock.wall).current
    return Supervisor(
        run_dir,
        Observer(run_dir, slurm, calendar=calendar, clock=clock.wall, monotonic=clock.monotonic),
        actor,
        managers=managers,
        clock=clock.wall,
        machine_s=clock.machine_s,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 when the deployment is to stop, else that of the error. After SIGTERM 0, too;
    under a gateway 143, since that starts one that dies again."""
    parser = argparse.ArgumentParser(prog="python -m exaslurm.supervisor", allow_abbrev=False)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--under-gateway", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--debug", action="store_true")
    options = parser.parse_args(argv)
    run_dir = RunDir(options.run_dir.absolute())
    # A file system that was away and came back is another one to who stands in it: sbatch would
    # find no current directory.
    os.chdir("/")
    lines = LogThread(
        "supervisor",
        level=logging.DEBUG if options.debug else logging.INFO,
        form="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s",
    )
    parent = os.getppid() if options.under_gateway else None
    try:
        supervisor = make(run_dir, dict(os.environ))
        is_over = asyncio.run(supervisor.run(while_parent=parent))
    except ExaslurmError as error:
        if options.debug:
            raise
        print(f"exaslurm: error: {error}", file=sys.stderr)
        if error.remedy:
            print(f"  remedy: {error.remedy}", file=sys.stderr)
        return int(error.exit_code)
    finally:
        lines.close()
    if options.under_gateway and not is_over:
        return 128 + signal.SIGTERM
    return int(ExitCode.OK)


if __name__ == "__main__":
    os.umask(0o077)
    # Cells are asked by threads that come and go, and each might have got memory of its own.
    set_malloc({Option.ARENA_MAX: 1})
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: a thread that hangs in a file call would be waited for.
    os._exit(code)
