"""``exaslurm logs``: what the parts of a deployment wrote."""

from __future__ import annotations

import click

from exaslurm.cli.output import talk
from exaslurm.cli.verb import deployment_argument, deployment_site_option, json_option, verb
from exaslurm.cli.verbs.key import DurationType


@verb("logs", short_help="Show or follow the logs of replicas, nodes, controller, router.")
@deployment_argument
@click.option("--replica", metavar="R", help="Log of one engine: c000-r0007, r0007 or 7.")
@click.option("--node", metavar="N", help="What init and agent of one node wrote.")
@click.option("--controller", is_flag=True, help="Log of the cells' controllers.")
@click.option("--batch", is_flag=True, help="Output of the batch scripts.")
@click.option("--router", is_flag=True, help="Log of the router.")
@click.option("--audit", is_flag=True, help="The audit log: who asked for what, one line each.")
@click.option("--since", metavar="TIME", type=DurationType(), help="With --audit: the last 2h, 7d.")
@click.option("--key", metavar="NAME", help="With --audit: requests with this key.")
@click.option("--model", metavar="NAME", help="With --audit: requests for this served name.")
@click.option("--verify", is_flag=True, help="Check that nobody has changed the audit log.")
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
    audit: bool,
    since: float | None,
    key: str | None,
    model: str | None,
    verify: bool,
    follow: bool,
    lines: int,
    as_json: bool,
    site: str | None,
) -> None:
    """Show the last lines of DEPLOYMENT's logs: all of them, or those asked for.

    With --json: the names and paths of the logs instead of their lines; with --audit, the
    records as they were written. With --audit and --verify, DEPLOYMENT may also be the directory
    of an audit log, as `exaslurm router --audit DIR` writes it.
    """
    import os
    import time

    from exaslurm.api.locate import find_run_dir
    from exaslurm.cli.follow import show
    from exaslurm.cli.output import result_json
    from exaslurm.status.logs import select_logs

    kinds = [replica is not None, node is not None, controller, batch, router, audit, verify]
    if sum(kinds) > 1:
        raise click.UsageError(
            "choose one of --replica, --node, --controller, --batch, --router, --audit, --verify"
        )
    if not audit and not (since is None and key is None and model is None):
        raise click.UsageError("--since, --key and --model go with --audit")
    if follow and (audit or verify):
        raise click.UsageError("--follow does not go with --audit and --verify")
    if audit or verify:
        from exaslurm.cli.audit_text import AuditLog, show_check, show_records

        log = AuditLog.find(deployment, dict(os.environ), site=site)
        if verify:
            show_check(log, as_json=as_json)
            return
        since_s = 0.0 if since is None else max(0.0, time.time() - since)
        show_records(log, lines=lines, since_s=since_s, key=key, model=model, as_json=as_json)
        return
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
