"""``exaslurm status``: how a deployment is doing, and what is wrong first."""

from __future__ import annotations

import click

from exaslurm.cli.output import result, result_json
from exaslurm.cli.verb import deployment_argument, deployment_site_option, json_option, verb
from exaslurm.errors import ExitCode

_SLURM_S = 8.0


@verb("status", short_help="Phases, replicas, nodes, and the first cause of what is wrong.")
@deployment_argument
@json_option
@click.option(
    "--watch",
    metavar="SECS",
    type=click.FloatRange(min=0.5),
    is_flag=False,
    flag_value=5.0,
    default=None,
    help="Show it again every SECS seconds (5), until Ctrl-C.",
)
@deployment_site_option
def status_command(
    deployment: str, as_json: bool, watch: float | None, site: str | None
) -> ExitCode:
    """Show the state of DEPLOYMENT: a name, a run directory or a spec file.

    Exit code 0 if every replica is ready, 6 if not. However short SECS is, Slurm is not asked
    more often than the site allows.
    """
    import os
    import sys
    import time

    from exaslurm.api.locate import find_run_dir
    from exaslurm.cli.status_text import status_text
    from exaslurm.core.codec import to_jsonable
    from exaslurm.slurm.client import Slurm
    from exaslurm.status.collect import Collector

    environ = dict(os.environ)
    # A controller that is down is asked twice; who looks wants the rest of the picture soon.
    slurm = Slurm(environ, timeout_s=_SLURM_S)
    collector = Collector(find_run_dir(deployment, environ, site=site), slurm)
    while True:
        status = collector.collect()
        if as_json:
            result_json(to_jsonable(status))
        else:
            if watch and sys.stdout.isatty():
                click.clear()
            result(status_text(status))
        if watch is None:
            return ExitCode.OK if status.is_ready else ExitCode.NOT_READY
        sys.stdout.flush()
        time.sleep(watch)
