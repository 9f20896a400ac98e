"""How a router process is told what to do: its options, from and to a command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from exaslurm.core.plan import RouterPolicy
from exaslurm.errors import UserError
from exaslurm.rundir import RunDir

MAX_WORKERS = 64
POLICIES = ("affinity", "power_of_two")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """How a router is started; None: as the plan says, or the default.

    Either ``run_dir`` or ``engines_file`` is what it serves. The last five are for processes that
    another router process starts: descriptors of the listening sockets, where the processes of
    the router put their figures, whether the sockets were served before, the descriptor of the line
    to the parent, and the workers that served meanwhile (pid and descriptor of each).
    """

    run_dir: RunDir | None = None
    generation: int | None = None
    engines_file: Path | None = None
    bind: str | None = None
    port: int | None = None
    tcp: bool = True
    uds: Path | None = None
    uds_mode: int = 0o600
    workers: int | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    policy: RouterPolicy | None = None
    canary: Path | None = None
    limits: tuple[str, ...] = ()
    keys_file: Path | None = None
    key_file: Path | None = None
    no_auth: bool = False
    audit: Path | None = None
    replace: bool = False
    supervise: bool = False
    debug: bool = False
    sockets: str | None = None
    figures: Path | None = None
    warm: bool = False
    control_fd: int | None = None
    helper: str | None = None


_PATHS = ("audit", "canary", "engines_file", "key_file", "keys_file", "tls_cert", "tls_key", "uds")


def parse(argv: Sequence[str] | None) -> GatewayOptions:
    """The options of ``python -m exaslurm.gateway``. UserError for what they cannot be."""
    given = _parser().parse_args(argv)
    values = {name: value for name, value in vars(given).items() if value is not None}
    for name in (
        "engines_file",
        "uds",
        "tls_cert",
        "tls_key",
        "keys_file",
        "key_file",
        "audit",
        "canary",
    ):
        if name in values:
            values[name] = values[name].absolute()
    if "run_dir" in values:
        values["run_dir"] = RunDir(values["run_dir"].absolute())
    values["limits"] = tuple(values.get("limits", ()))
    options = GatewayOptions(**values)
    _check(options)
    return options


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m exaslurm.gateway", allow_abbrev=False)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--run-dir", type=Path, help="the deployment's directory")
    what.add_argument("--engines-file", type=Path, help="a list of engines instead")
    add = parser.add_argument
    add("--gen", dest="generation", type=int, help="generation of the plan (default: newest)")
    add("--bind", help="address to listen on (default: as planned)")
    add("--port", type=int, help="port (default: as planned; 0: a free one)")
    add("--no-tcp", dest="tcp", action="store_false", help="listen on --uds only")
    add("--uds", type=Path, help="listen on this unix socket, too")
    add("--uds-mode", type=_mode, help="mode of the unix socket (default: 0600)")
    add("--workers", type=int, help="processes that serve (default: as planned)")
    add("--tls-cert", type=Path, help="certificate chain (PEM): serve HTTPS")
    add("--tls-key", type=Path, help="its private key (PEM)")
    add("--policy", choices=POLICIES, help="how a replica is chosen")
    add("--canary", type=Path, help="file with the shares of a model's versions")
    add("--limit", dest="limits", action="append", help="NAME=VALUE, as of gateway.limits")
    add("--keys-file", type=Path, help="client keys, as 'exaslurm key' stores them")
    add("--key-file", type=Path, help="a file that holds the one client key")
    add("--no-auth", action="store_true", help="ask nobody for a key")
    add("--audit", type=Path, help="with a list of engines: keep an audit log in this directory")
    add("--replace", action="store_true", help="take over from the router that runs")
    add("--supervise", action="store_true", help="look after the deployment's jobs, too")
    add("--debug", action="store_true", help="more log, tracebacks on errors")
    add("--sockets", help=argparse.SUPPRESS)
    add("--figures", type=Path, help=argparse.SUPPRESS)
    add("--warm", action="store_true", help=argparse.SUPPRESS)
    add("--control-fd", type=int, help=argparse.SUPPRESS)
    add("--helper", help=argparse.SUPPRESS)
    return parser


def _check(options: GatewayOptions) -> None:
    if options.workers is not None and not 1 <= options.workers <= MAX_WORKERS:
        raise UserError(f"--workers {options.workers}: from 1 to {MAX_WORKERS} are possible")
    if options.bind is not None and not options.bind.strip():
        # To the system it would be every address, which is seldom what an unset variable means.
        raise UserError("--bind is empty", remedy="give an address, 0.0.0.0 for all of them")
    if (options.tls_cert is None) != (options.tls_key is None):
        raise UserError("--tls-cert and --tls-key belong together: one of them is missing")
    if not options.tcp and options.uds is None:
        raise UserError("--no-tcp leaves nothing to listen on", remedy="give --uds PATH")
    if options.run_dir is not None and (
        options.keys_file is not None or options.key_file is not None or options.no_auth
    ):
        raise UserError(
            "a deployment has its own keys: --keys-file, --key-file and --no-auth are for "
            "--engines-file",
            remedy="exaslurm key add DEPLOYMENT NAME makes a key",
        )
    if options.supervise and options.run_dir is None:
        raise UserError("--supervise is for a deployment: a list of engines has no jobs")
    if options.run_dir is not None and options.audit is not None:
        raise UserError(
            "a deployment's audit log is in its run directory: --audit is for --engines-file",
            remedy="gateway.audit in the spec turns it on and off",
        )


def _mode(text: str) -> int:
    """0600 or 0660, or what is stricter."""
    try:
        mode = int(text, 8)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no octal number such as 0660") from None
    if mode & ~0o660:
        raise argparse.ArgumentTypeError(f"{text}: owner and group may get rw, nobody else")
    return mode
