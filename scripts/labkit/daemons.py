"""The daemons of a host: how each is started, and which of them run."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from labkit import accounting, cgroups, enter
from labkit.errors import LabError
from labkit.etcdir import account_ids
from labkit.layout import PRIVATE_RUN, SHARED
from labkit.record import LabRecord

# A daemon that others ask at once: going to the background does not yet mean that it listens.
PORTS = {"slurmctld": 6817, "slurmdbd": accounting.SLURMDBD_PORT}
START_TIMEOUT_S = 60.0

COMMANDS = {
    "munged": [
        *("setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "--"),
        *("munged", "--seed-file=/run/munge/munged.seed", "--log-file=/var/log/munge/munged.log"),
    ],
    # Time-outs of 0: what one host writes, the others see at once, as on a parallel file system.
    "bindfs": [
        *("bindfs", "-o", "allow_other,attr_timeout=0,entry_timeout=0,negative_timeout=0"),
        *(f"{PRIVATE_RUN}/shared", SHARED),
    ],
    "mariadbd": ["sh", "-c", accounting.START_DATABASE],
    "slurmdbd": ["slurmdbd"],
    "slurmctld": ["slurmctld"],
    "slurmd": ["slurmd"],
}


def running(record: LabRecord, host: str) -> dict[str, str]:
    """State of each daemon that the host should have: running, stopped (SIGSTOP) or dead."""
    holder = record.holders.get(host)
    states = {process.name: process.state for process in holder.processes()} if holder else {}
    words = {}
    for name in record.host(host).daemons:
        state = states.get(name)
        words[name] = "dead" if state is None else "stopped" if state in "Tt" else "running"
    return words


def start(record: LabRecord, daemon: str, hosts: Iterable[str]) -> None:
    """Start `daemon` on each of `hosts` where it is missing. They daemonize when they serve."""
    missing = [host for host in hosts if running(record, host).get(daemon) == "dead"]
    started = []
    for host in missing:
        door = record.door(host)
        if daemon == "munged":
            directory = Path(f"/proc/{door.pid}/root/run/munge")
            directory.mkdir(exist_ok=True)
            shutil.chown(directory, *account_ids(record.paths.etc, "munge"))
        if daemon == "slurmd":
            door = replace(door, cgroups=tuple(cgroups.for_slurmd(door.cgroups)))
        started.append((host, enter.popen(door, COMMANDS[daemon])))
    for host, process in started:
        output, _ = process.communicate(timeout=START_TIMEOUT_S)
        if process.returncode:
            raise LabError(
                f"{host}: {daemon} does not start ({process.returncode}): "
                f"{output.strip() or 'silent'}\n{last_words(record, host)}"
            )
    if daemon in PORTS:
        for host in missing:
            _await_port(record, host, daemon)


def _await_port(record: LabRecord, host: str, daemon: str) -> None:
    address, port = record.address(host), PORTS[daemon]
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            socket.create_connection((address, port), timeout=1).close()
            return
        except OSError as error:
            gone = running(record, host)[daemon] == "dead"
            if gone or time.monotonic() > deadline:
                raise LabError(
                    f"{host}: {daemon} {'ended at once' if gone else f'is not on port {port}'} "
                    f"({error})\n{last_words(record, host)}"
                ) from error
        time.sleep(0.05)


def start_all(record: LabRecord) -> None:
    """Start what is missing, on every host that is up."""
    up = [name for name in record.hosts if record.is_host_up(name)]
    for daemon in COMMANDS:
        start(record, daemon, [name for name in up if daemon in record.host(name).daemons])


def node_states(record: LabRecord, timeout_s: float = 10) -> dict[str, str]:
    """Slurm's word for each node, such as `idle` or `down*`. Raises LabError if it is silent."""
    output = enter.run(record.door("ctl"), ["sinfo", "-h", "-N", "-o", "%N %T"], timeout_s)
    return dict(line.split() for line in output.splitlines() if line.strip())


def await_idle(record: LabRecord) -> None:
    """Wait until every node has registered. Raises LabError with the logs' last words."""
    deadline = time.monotonic() + START_TIMEOUT_S
    busy = ("idle", "mixed", "allocated", "completing")
    while True:
        try:
            states = node_states(record)
        except LabError as error:
            states = {"ctl": str(error)}
        bad = {name: state for name, state in states.items() if state not in busy}
        if not bad and len(states) == record.config.nodes:
            return
        if time.monotonic() > deadline:
            raise LabError(f"after {START_TIMEOUT_S:g} s Slurm says {bad}\n{last_words(record)}")
        time.sleep(0.1)


def last_words(record: LabRecord, *hosts: str, lines: int = 5) -> str:
    """The ends of the Slurm logs of these hosts, or of all."""
    parts = []
    for host in hosts or record.hosts:
        for log in sorted((record.paths.host(host) / "log/slurm").glob("*.log")):
            tail = log.read_text(errors="replace").splitlines()[-lines:]
            parts.append(f"-- {host}, {log.name}\n" + "\n".join(tail))
    return "\n".join(parts)
