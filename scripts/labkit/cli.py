"""The command line of scripts/lab."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from labkit import chroot, door, down, enter, faults, lock, prerequisites, status, up
from labkit import record as records
from labkit.errors import EXIT_NOT_UP, LabError, UsageError
from labkit.layout import CHROOT_DIR, PROFILES, LabConfig, default_name

DESCRIPTION = "A real Slurm cluster of namespaces on this machine, for tests and first steps."
EPILOG = "Exit codes: 0 fine, 1 failed, 2 usage, 3 not up, 4 the machine lacks something."


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lab", description=DESCRIPTION, epilog=EPILOG)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    named = argparse.ArgumentParser(add_help=False)
    named.add_argument(
        "--name", default=default_name(), help="which lab (default: $EXASLURM_LAB or lab)"
    )

    up_verb = verbs.add_parser("up", parents=[named], help="bring the lab up, or mend it")
    up_verb.add_argument("--nodes", type=int, default=4, metavar="N", help="c1 to cN (default 4)")
    up_verb.add_argument("--profile", choices=PROFILES, default="wide")
    up_verb.add_argument("--slurm", metavar="DIR|22.05|24.11", help="a chroot, or a known version")
    up_verb.add_argument("--accounting", action="store_true", help="slurmdbd and MariaDB too")
    up_verb.add_argument(
        "--conf", action="append", default=[], metavar="K=V", help="a further line of slurm.conf"
    )
    up_verb.add_argument("--install", action="store_true", help="apt-get what is missing")

    verbs.add_parser("down", parents=[named], help="take every trace of the lab away")

    status_verb = verbs.add_parser("status", parents=[named], help="hosts, daemons, faults")
    status_verb.add_argument("--json", action="store_true")

    exec_verb = verbs.add_parser("exec", parents=[named], help="run a command on a host")
    exec_verb.add_argument("--user", default="exa1")
    exec_verb.add_argument("--env", action="append", default=[], metavar="K=V")
    exec_verb.add_argument("--cwd", metavar="DIR", help="default: the user's home")
    exec_verb.add_argument(
        "--door", action="store_true", help=f"the command may use scripts/lab: {door.DOOR}/lab"
    )
    exec_verb.add_argument("host", metavar="HOST")
    exec_verb.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD")

    for verb, actions, help_text in (
        ("fs", ("hang", "resume", "remove", "restore"), "the shared file system of one host"),
        ("link", ("cut", "restore"), "the network link of one host"),
    ):
        fault = verbs.add_parser(verb, parents=[named], help=help_text)
        fault.add_argument("action", choices=actions)
        fault.add_argument("host", metavar="HOST")
    for verb, help_text in (
        ("kill-node", "end a host as a power failure does"),
        ("start-node", "start it again"),
    ):
        node = verbs.add_parser(verb, parents=[named], help=help_text)
        node.add_argument("host", metavar="HOST")

    chroot_verb = verbs.add_parser("chroot", help="make a Debian 13 with Slurm 24.11")
    chroot_verb.add_argument("directory", nargs="?", default=str(CHROOT_DIR), metavar="DIR")
    chroot_verb.add_argument("--install", action="store_true", help="apt-get what is missing")
    return parser


def _up(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    root = prerequisites.slurm_root(arguments.slurm)
    prerequisites.ensure_packages(root, arguments.accounting, arguments.install)
    version = prerequisites.slurm_version(root)
    prerequisites.check_version(arguments.slurm, version)
    config = LabConfig(
        arguments.name,
        arguments.nodes,
        arguments.profile,
        str(root),
        arguments.accounting,
        tuple(arguments.conf),
    )
    with lock.machine_lock():
        lab, made = up.bring_up(config, version)
    word = "up" if made else "up already"
    say(
        f"lab {arguments.name} is {word}: Slurm {lab.slurm_version}, {arguments.nodes} nodes, "
        f"{time.monotonic() - began:.1f} s. `scripts/lab exec login -- sinfo` looks inside."
    )
    return 0


def _down(arguments: argparse.Namespace) -> int:
    with lock.machine_lock():
        was = down.take_down(arguments.name)
    say(f"lab {arguments.name} is gone" if was else f"lab {arguments.name} was not up")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    # `lab status | head` is no error.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    value = status.as_json(arguments.name, records.load(arguments.name))
    print(json.dumps(value, indent=1) if arguments.json else status.as_text(value))
    return 0 if value["up"] else EXIT_NOT_UP


def _exec(arguments: argparse.Namespace) -> int:
    command = list(arguments.command)
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        raise UsageError("no command: lab exec HOST -- CMD [ARG...]")
    environment = {}
    for pair in arguments.env:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise UsageError(f"--env {pair!r}: use KEY=VALUE")
        environment[key] = value
    lab = records.load_running(arguments.name)
    where = lab.door(arguments.host)
    user, cwd = arguments.user, arguments.cwd
    if not arguments.door:
        return enter.exec_in_foreground(where, user, command, environment, cwd)
    with door.Door(lab, arguments.host, user):
        return enter.exec_in_foreground(where, user, command, environment, cwd)


def _fault(arguments: argparse.Namespace) -> int:
    actions = {
        ("fs", "hang"): faults.hang_shared,
        ("fs", "resume"): faults.resume_shared,
        ("fs", "remove"): faults.remove_shared,
        ("fs", "restore"): faults.restore_shared,
        ("link", "cut"): faults.cut_link,
        ("link", "restore"): faults.restore_link,
    }
    with lock.machine_lock():
        lab = records.load_running(arguments.name)
        lab.host(arguments.host)
        actions[arguments.verb, arguments.action](lab, arguments.host)
    return 0


def _power(arguments: argparse.Namespace) -> int:
    with lock.machine_lock():
        lab = records.load_running(arguments.name)
        lab.host(arguments.host)
        if arguments.verb == "kill-node":
            faults.kill_node(lab, arguments.host)
        else:
            faults.start_node(lab, arguments.host)
    return 0


def _chroot(arguments: argparse.Namespace) -> int:
    directory = Path(arguments.directory).absolute()
    with lock.machine_lock():
        made = chroot.make(directory, arguments.install)
    version = prerequisites.slurm_version(directory)
    say(f"{directory}: Slurm {version}{'' if made else ', there already'}")
    return 0


def main(argv: Sequence[str]) -> int:
    """Run one verb and return the exit code."""
    arguments = _parser().parse_args(argv)
    verbs = {
        "up": _up,
        "down": _down,
        "status": _status,
        "exec": _exec,
        "fs": _fault,
        "link": _fault,
        "kill-node": _power,
        "start-node": _power,
        "chroot": _chroot,
    }
    try:
        prerequisites.require_root()
        return verbs[arguments.verb](arguments)
    except LabError as error:
        say(f"lab: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
