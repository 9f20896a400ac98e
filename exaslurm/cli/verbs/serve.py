"""``exaslurm gateway`` and ``exaslurm router``: serving in the foreground."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from exaslurm.cli.verb import deployment_argument, deployment_site_option, verb

F = TypeVar("F", bound=Callable[..., Any])

_FILE = click.Path()
# The policies and limits themselves are looked up where they are used: this is read for --help.
_SHARED = (
    click.option("--bind", metavar="ADDRESS", help="Address to listen on."),
    click.option(
        "--port",
        metavar="PORT",
        type=click.IntRange(0, 65535),
        help="Port to listen on; 0: the first free one of the site.",
    ),
    click.option(
        "--workers",
        metavar="N",
        type=click.IntRange(1, 64),
        help="Processes that share the port, each good for one core.",
    ),
    click.option("--uds", metavar="PATH", type=_FILE, help="Listen on this unix socket, too."),
    click.option(
        "--uds-mode",
        metavar="MODE",
        help="Mode of the unix socket: 0600 (the default), or 0660 for its group.",
    ),
    click.option("--no-tcp", is_flag=True, help="Listen on --uds only."),
    click.option(
        "--tls-cert",
        metavar="FILE",
        type=_FILE,
        help="Certificate chain (PEM): serve HTTPS. It is read again when it changes.",
    ),
    click.option("--tls-key", metavar="FILE", type=_FILE, help="Its private key (PEM)."),
    click.option(
        "--policy", metavar="NAME", help="How a replica is chosen: affinity or power_of_two."
    ),
    click.option(
        "--canary",
        metavar="FILE",
        type=_FILE,
        help="Shares of the versions of a model (JSON). It is read again when it changes.",
    ),
    click.option(
        "--limit",
        metavar="NAME=VALUE",
        multiple=True,
        help="A limit in place of the planned one, such as max_in_flight=1000. Repeatable.",
    ),
    click.option(
        "--replace",
        is_flag=True,
        help="Take over the sockets of the router that serves the same here, if there is one; it "
        "finishes its requests and ends.",
    ),
)


def _options(function: F) -> F:
    for option in reversed(_SHARED):
        function = option(function)
    return function


@verb("gateway", short_help="Run a deployment's gateway in the foreground.")
@deployment_argument
@_options
@deployment_site_option
def gateway_command(deployment: str, site: str | None, **given: Any) -> None:
    """Run the gateway of DEPLOYMENT here, in the foreground, until the deployment is stopped: a
    router, and the supervisor that replaces jobs which end.

    Its address is entered in the run directory, so that endpoint and chat find it. Use it where
    submit may not leave a process behind: a service host, a systemd unit, a terminal. What is not
    given is as the plan says.

    SIGTERM and Ctrl-C let requests at hand finish. SIGHUP starts it again, with the program and
    the files as they are by then, without losing a connection.
    """
    _become_gateway([*_deployment(deployment, site), "--supervise", *_arguments(given)])


@verb("router", short_help="Run one more router for a deployment, or for a list of engines.")
@click.argument("deployment", metavar="[DEPLOYMENT]", required=False)
@_options
@click.option(
    "--engines-file",
    metavar="FILE",
    type=_FILE,
    help="Serve the engines of this list, one http://HOST:PORT a line, without a deployment.",
)
@click.option(
    "--key-file",
    metavar="FILE",
    type=_FILE,
    help="With --engines-file: the one key of clients, in a file of mode 0600.",
)
@click.option(
    "--keys-file",
    metavar="FILE",
    type=_FILE,
    help="With --engines-file: the keys of clients, as 'exaslurm key' stores them.",
)
@click.option(
    "--no-auth",
    is_flag=True,
    help="With --engines-file: ask nobody for a key. On loopback and unix sockets only.",
)
@click.option(
    "--audit",
    metavar="DIR",
    type=_FILE,
    help="With --engines-file: write a record of every request into this directory.",
)
@deployment_site_option
def router_command(deployment: str | None, site: str | None, **given: Any) -> None:
    """Run a router that follows DEPLOYMENT (a name or a run directory) until it is stopped.

    Routers keep no state: any number may run, on any host that sees the run directory. With
    --engines-file it needs neither a deployment nor Slurm; the key of clients may then also be in
    the variable EXASLURM_ROUTER_KEY.

    SIGTERM and Ctrl-C let requests at hand finish. SIGHUP starts it again, with the program and
    the files as they are by then, without losing a connection.
    """
    if (deployment is None) == (given["engines_file"] is None):
        raise click.UsageError("give either DEPLOYMENT or --engines-file FILE")
    what = [] if deployment is None else _deployment(deployment, site)
    _become_gateway([*what, *_arguments(given)])


def _deployment(name: str, site: str | None) -> list[str]:
    import os

    from exaslurm.api.locate import find_run_dir
    from exaslurm.errors import StateError

    run_dir = find_run_dir(name, dict(os.environ), site=site)
    generation = run_dir.current()
    if generation is None:
        raise StateError(f"{run_dir.path} holds no generation", remedy="submit it first")
    return ["--run-dir", str(run_dir.path), "--gen", str(generation.number)]


def _arguments(given: dict[str, Any]) -> list[str]:
    """The options that were given, as the gateway's own."""
    argv: list[str] = []
    for name, value in given.items():
        option = "--" + name.replace("_", "-")
        if isinstance(value, tuple):
            argv += [word for item in value for word in (option, str(item))]
        elif value is True:
            argv.append(option)
        elif value is not None and value is not False:
            argv += [option, str(value)]
    return argv


def _become_gateway(arguments: list[str]) -> None:
    """Become the gateway process: its signals, exit code and memory are its own."""
    import os
    import sys

    from exaslurm.gateway.options import parse

    debug = ["--debug"] if "--debug" in sys.argv else []
    parse(arguments)  # what does not go together is told as this command's error
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "exaslurm.gateway", *arguments, *debug])
