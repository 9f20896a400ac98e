"""``python -m exaslurm.simulate.supervisor DIR``: the real supervisor, with a simulated Slurm."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from exaslurm.rundir import RunDir
from exaslurm.simulate.slurm import SimulatedSlurm
from exaslurm.supervisor.__main__ import make
from exaslurm.util.clock import Clock
from exaslurm.util.logthread import LogThread


def main() -> int:
    """Until SIGTERM, or until the deployment is to stop."""
    environ = dict(os.environ)
    lines = LogThread("supervisor")
    supervisor = make(
        RunDir(Path(sys.argv[1])),
        environ,
        slurm=SimulatedSlurm(environ),
        clock=Clock.of(environ),
    )
    asyncio.run(supervisor.run())
    lines.close()
    return 0


if __name__ == "__main__":
    os.umask(0o077)
    code = main()
    os._exit(code)
