"""``exaslurm drain``: emptying a replica, a node or a cell without an error to anybody."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from exaslurm.cli.output import result, result_json, talk
from exaslurm.cli.verb import deployment_argument, deployment_site_option, json_option, verb
from exaslurm.cli.verbs.key import DurationType

if TYPE_CHECKING:
    from exaslurm.api.drain import What


@verb("drain", short_help="Empty a replica, a node or a cell; what it carried comes up elsewhere.")
@deployment_argument
@click.argument("what", metavar="replica|node|cell", type=click.Choice(["replica", "node", "cell"]))
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--reason", metavar="TEXT", help="Why; shown by status and kept in the history.")
@click.option(
    "--exclude-for",
    metavar="TIME",
    type=DurationType(),
    default="1d",
    show_default=True,
    help="Of a node: later jobs do without it for TIME.",
)
@click.option("--wait", is_flag=True, help="Wait until it is empty, and a replica serves again.")
@click.option(
    "--timeout",
    metavar="TIME",
    type=DurationType(),
    default="15m",
    show_default=True,
    help="With --wait: give up after TIME (exit code 3); the drain goes on.",
)
@json_option
@deployment_site_option
def drain_command(
    deployment: str,
    what: What,
    names: tuple[str, ...],
    reason: str | None,
    exclude_for: float,
    wait: bool,
    timeout: float,
    as_json: bool,
    site: str | None,
) -> None:
    """Empty replicas, nodes or cells of DEPLOYMENT: routers send them nothing new, what they have
    begun is finished, then they end.

    A replica is started anew, on another node if one has room. A node carries nothing for the rest
    of its job: its replicas come up elsewhere first, where there is room. A cell gets a new job,
    and ends when that serves (a supervisor must run: 'exaslurm gateway' has one).

    \b
    Examples:
        exaslurm drain hello replica c000-r0003 --reason "answers nonsense" --wait
        exaslurm drain hello node nid000123 --exclude-for 7d
        exaslurm drain hello cell c000
    """
    import math
    import os

    from exaslurm.api.drain import drain, wait_drained
    from exaslurm.api.locate import find_run_dir

    environ = dict(os.environ)
    run_dir = find_run_dir(deployment, environ, site=site)
    if math.isinf(exclude_for):
        exclude_for = 3650 * 86400.0
    done = drain(run_dir, what, names, environ=environ, reason=reason, excluded_s=exclude_for)
    talk(f"asked {', '.join(done.cells)} to drain {what} {', '.join(names)}")
    if wait:
        wait_drained(run_dir, done, timeout_s=timeout, talk=talk)
    if as_json:
        result_json(
            {
                "schema": "exaslurm/drain/1",
                "deployment": run_dir.deployment,
                "what": what,
                "names": list(names),
                "reason": done.reason,
                "cells": list(done.cells),
                "replicas": sorted(done.before),
                "drained": wait,
            }
        )
    else:
        result(f"{what} {', '.join(names)}: {'drained' if wait else 'drains'}")
