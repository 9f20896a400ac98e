"""``exaslurm supervise``: looking after a deployment's jobs in the foreground."""

from __future__ import annotations

from exaslurm.cli.verb import deployment_argument, deployment_site_option, verb


@verb("supervise", short_help="Replace a deployment's jobs when they end, and before.")
@deployment_argument
@deployment_site_option
def supervise_command(deployment: str, site: str | None) -> None:
    """Look after the jobs of DEPLOYMENT here, in the foreground, until it is stopped.

    A cell whose job ends, fails or nears its time limit gets another job; the old one is drained
    and ended when the new one serves. 'exaslurm gateway' does this too: use this where routers run
    that do not ('exaslurm router'), on a host that has Slurm's commands.

    It keeps nothing of its own: it may be ended at any time, and started elsewhere. What it does is
    written to history.jsonl in the run directory; what it waits for is told by 'exaslurm status'.
    """
    import os
    import sys

    from exaslurm.api.locate import find_run_dir

    run_dir = find_run_dir(deployment, dict(os.environ), site=site)
    debug = ["--debug"] if "--debug" in sys.argv else []
    sys.stdout.flush()
    arguments = ["-m", "exaslurm.supervisor", "--run-dir", str(run_dir.path), *debug]
    os.execv(sys.executable, [sys.executable, *arguments])
