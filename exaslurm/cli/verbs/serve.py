"""``exaslurm gateway`` and ``exaslurm router``: serving in the foreground."""

from __future__ import annotations

import click

from exaslurm.cli.verb import deployment_argument, deployment_site_option, verb

_bind_option = click.option(
    "--bind", metavar="ADDRESS", help="Address to listen on. Default: what the plan says."
)
_port_option = click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    help="Port to listen on. Default: what the plan says; 0: the first free one of the site.",
)


@verb("gateway", short_help="Run a deployment's gateway in the foreground.")
@deployment_argument
@_bind_option
@_port_option
@deployment_site_option
def gateway_command(deployment: str, bind: str | None, port: int | None, site: str | None) -> None:
    """Run the gateway of DEPLOYMENT here, in the foreground, until the deployment is stopped.

    Its address is entered in the run directory, so that endpoint and chat find it. Use it where
    submit may not leave a process behind: a service host, a systemd unit, a terminal.
    """
    _serve(deployment, bind, port, site)


@verb("router", short_help="Run one more router for a deployment, on any host that sees its files.")
@deployment_argument
@_bind_option
@_port_option
@deployment_site_option
def router_command(deployment: str, bind: str | None, port: int | None, site: str | None) -> None:
    """Run a router that follows DEPLOYMENT (a name or a run directory) until it is stopped.

    Routers keep no state: any number may run, on any host that sees the run directory.
    """
    _serve(deployment, bind, port, site)


def _serve(deployment: str, bind: str | None, port: int | None, site: str | None) -> None:
    """Become the gateway process: its signals, exit code and memory are its own."""
    import os
    import sys

    from exaslurm.api.locate import find_run_dir
    from exaslurm.errors import StateError

    run_dir = find_run_dir(deployment, dict(os.environ), site=site)
    generation = run_dir.latest()
    if generation is None:
        raise StateError(f"{run_dir.path} holds no generation", remedy="submit it first")
    argv = [sys.executable, "-m", "exaslurm.gateway", "--run-dir", str(run_dir.path)]
    argv += ["--gen", str(generation.number)]
    argv += ["--bind", bind] if bind is not None else []
    argv += ["--port", str(port)] if port is not None else []
    sys.stdout.flush()
    os.execv(sys.executable, argv)
