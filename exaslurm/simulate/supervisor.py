"""``python -m exaslurm.simulate.supervisor``: the real supervisor, with a simulated Slurm."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

from exaslurm.autoscale.manager import AutoscaleManager
from exaslurm.rundir import RunDir
from exaslurm.simulate.slurm import SimulatedSlurm
from exaslurm.submit import records
from exaslurm.submit.submit import template_dirs_for
from exaslurm.supervisor.act import Actor
from exaslurm.supervisor.loop import Supervisor
from exaslurm.supervisor.observe import Observer
from exaslurm.supervisor.scaling import Scaling
from exaslurm.util.clock import Clock


def main() -> int:
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    environ = dict(os.environ)
    run_dir, clock = RunDir(Path(sys.argv[1])), Clock.of(environ)
    latest = run_dir.require().latest()
    plan = records.read_plan(latest) if latest is not None else None
    assert plan is not None
    slurm = SimulatedSlurm(environ)
    actor = Actor(
        run_dir=run_dir,
        slurm=slurm,
        environ=environ,
        template_dirs=template_dirs_for(plan, environ),
        clock=clock.wall,
    )
    observer = Observer(run_dir, slurm, clock=clock.wall)
    supervisor = Supervisor(
        run_dir,
        observer,
        actor,
        managers=[Scaling(AutoscaleManager(run_dir=run_dir))],
        clock=clock.wall,
        machine_s=clock.machine_s,
    )
    asyncio.run(supervisor.run())
    return 0


if __name__ == "__main__":
    os.umask(0o077)
    code = main()
    os._exit(code)
