"""Switching hosts on and off: their directories, namespaces and wires, not their daemons."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

from labkit import cgroups, layout, network, processes
from labkit.errors import LabError
from labkit.etcdir import account_ids
from labkit.layout import Host
from labkit.mountplan import OWN_DIRS, Mount, plan_mounts
from labkit.record import Holder, LabRecord

HOLDER_SCRIPT = Path(__file__).with_name("holder.py")
SOURCE_TREE = Path(__file__).resolve().parents[2]
FABRIC = "switch"
STOP_TIMEOUT_S = 20.0


def _start_holder(
    directory: Path,
    hostname: str,
    cores: tuple[int, ...],
    places: list[cgroups.Place],
    mounts: list[Mount],
) -> Holder:
    """Start holder.py and wait until its namespaces stand."""
    spec = {
        "hostname": hostname,
        "cores": cores,
        "cgroups": [asdict(place) for place in places],
        "mounts": [asdict(mount) for mount in mounts],
    }
    spec_path = directory / "holder.json"
    layout.write_json(spec_path, spec)
    process = subprocess.Popen(
        [sys.executable, "-I", str(HOLDER_SCRIPT), str(spec_path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    # The holder closes its output once it has said how it went, so this does end.
    output, _ = process.communicate(timeout=30)
    # Two processes write, so the order of the lines is not known.
    told = re.search(r"^pid (\d+)$", output, re.MULTILINE)
    if process.returncode or told is None or "ready" not in output.splitlines():
        raise LabError(f"{hostname}: its namespaces cannot be made: {output.strip() or 'silent'}")
    pid = int(told.group(1))
    found = processes.look_up(pid)
    if found is None:
        raise LabError(f"{hostname}: its first process ({pid}) ended at once")
    return Holder(pid, found.started, tuple(place.users for place in places))


def start_switch(record: LabRecord) -> LabRecord:
    """Make the lab's network and the real machine's link to it."""
    directory = record.paths.host(FABRIC)
    directory.mkdir(parents=True, exist_ok=True)
    holder = _start_holder(directory, f"{record.config.name}-{FABRIC}", (), [], [])
    record = replace(record, fabric=holder)
    record.save()
    network.build_switch(holder.pid, record.subnet)
    return record


def _make_directories(record: LabRecord, host: Host) -> None:
    own = record.paths.host(host.name)
    for name, (_, mode) in OWN_DIRS.items():
        directory = own / name
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(mode)
    (own / "hostname").write_text(host.name + "\n")
    owners = {
        "log/slurm": "slurm",
        "log/munge": "munge",
        "spool/slurmctld": "slurm",
        "spool/slurmd": "root",
    }
    for name, account in owners.items():
        directory = own / name
        directory.mkdir(exist_ok=True)
        shutil.chown(directory, *account_ids(record.paths.etc, account))


def power_on(record: LabRecord, name: str) -> LabRecord:
    """Start the host's namespaces and wire it; return the record that knows of it."""
    host = record.host(name)
    fabric = record.switch_pid()
    _make_directories(record, host)
    hierarchies = cgroups.detect() if record.config.profile == "real" else []
    places = cgroups.create(hierarchies, record.config.name, name)
    mounts = plan_mounts(
        record.paths,
        name,
        Path(record.config.slurm_root),
        cgroups.plan_cgroup_mounts(hierarchies),
        SOURCE_TREE,
    )
    holder = _start_holder(record.paths.host(name), name, host.cores, places, mounts)
    cgroups.hand_on(places)
    record = record.with_holder(name, holder)
    record.save()
    network.connect_host(fabric, holder.pid, record.subnet, host)
    return record


def power_off(record: LabRecord, name: str) -> None:
    """End every process of the host at once, as a power failure does."""
    record.host(name)
    holder = record.holders.get(name)
    if holder is None or not holder.alive:
        return
    processes.end(holder.processes(), STOP_TIMEOUT_S)
    # The kernel removes interfaces of a dead namespace in its own time.
    fabric = record.switch_pid()
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while network.port_exists(fabric, name):
        if time.monotonic() > deadline:
            raise LabError(f"{name}: its port is still in the switch; something holds its network")
        time.sleep(0.05)
