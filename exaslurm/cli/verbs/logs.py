"""``exaslurm logs``: what the parts of a deployment wrote."""

from __future__ import annotations

import click

from exaslurm.cli.output import talk
from exaslurm.cli.verb import deployment_argument, deployment_site_option, json_option, verb


@verb("logs", short_help="Show or follow the logs of replicas, nodes, controller, router.")
@deployment_argument
@click.option("--replica", metavar="R", help="Log of one engine: c000-r0007, r0007 or 7.")
@click.option("--node", metavar="N", help="What init and agent of one node wrote.")
@click.option("--controller", is_flag=True, help="Log of the cells' controllers.")
@click.option("--batch", is_flag=True, help="Output of the batch scripts.")
@click.option("--router", is_flag=True, help="Log of the router.")
@click.option("-f", "--follow", is_flag=True, help="Go on showing what is added, until Ctrl-C.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="How many of the last lines of each log.",
)
@json_option
@deployment_site_option
def logs_command(
    deployment: str,
    replica: str | None,
    node: str | None,
    controller: bool,
    batch: bool,
    router: bool,
    follow: bool,
    lines: int,
    as_json: bool,
    site: str | None,
) -> None:
    """Show the last lines of DEPLOYMENT's logs: all of them, or those asked for.

    With --json: the names and paths of the logs instead of their lines.
    """
    import os

    from exaslurm.api.locate import find_run_dir
    from exaslurm.cli.follow import show
    from exaslurm.cli.output import result_json
    from exaslurm.status.logs import select_logs

    if sum([replica is not None, node is not None, controller, batch, router]) > 1:
        raise click.UsageError("choose one of --replica, --node, --controller, --batch, --router")
    run_dir = find_run_dir(deployment, dict(os.environ), site=site)
    chosen = select_logs(
        run_dir, replica=replica, node=node, controller=controller, batch=batch, router=router
    )
    if as_json:
        files = [{"name": log.label, "path": str(log.path)} for log in chosen]
        result_json({"schema": "exaslurm/logs/1", "deployment": run_dir.deployment, "logs": files})
        return
    if follow and len(chosen) == 1:
        talk(f"following {chosen[0].path}")
    show(chosen, lines=lines, follow=follow)
