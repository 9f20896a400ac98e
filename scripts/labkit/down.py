"""Taking a lab away, and proving that it has gone."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from labkit import cgroups, network, processes, record
from labkit.errors import LabError
from labkit.layout import LABS_DIR, Paths

TIMEOUT_S = 30.0


def _mounts_below(directory: Path) -> list[str]:
    points = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return [
        point for point in points if point == str(directory) or point.startswith(f"{directory}/")
    ]


def traces(name: str, subnet: int | None, living: list[processes.Process]) -> list[str]:
    """Everything of the lab that is still on the machine, in words. Empty: nothing is.

    `living` are the processes that its namespaces held before it was taken down.
    """
    found = [
        f"process {process.pid} ({process.name})"
        for process in living
        if processes.is_alive(process.pid, process.started)
    ]
    if subnet is not None and network.interface_exists(subnet):
        found.append(f"interface {network.outside_interface(subnet)}")
    found += [f"cgroup {directory}" for directory in cgroups.directories_left(name)]
    state = Paths.of(name).state
    found += [f"mount {point}" for point in _mounts_below(state)]
    if state.exists():
        found.append(f"directory {state}")
    return found


def _living(lab: record.LabRecord | None) -> list[processes.Process]:
    if lab is None:
        return []
    holders = [*lab.holders.values(), *([lab.fabric] if lab.fabric else [])]
    return [process for holder in holders for process in holder.processes()]


def take_down(name: str) -> list[str]:
    """Remove the lab; return what it consisted of, in words. A lab that is not there is fine.

    Raises LabError that lists what could not be removed.
    """
    try:
        lab = record.load(name)
    except LabError:
        # An unreadable record names no process: the directories can go nevertheless.
        lab = None
    living = _living(lab)
    subnet = lab.subnet if lab else None
    was = traces(name, subnet, living)
    processes.end(living, TIMEOUT_S)
    cgroups.remove(name)
    # The kernel takes the interface away with the namespace, in its own time.
    deadline = time.monotonic() + TIMEOUT_S / 2
    while subnet is not None and network.interface_exists(subnet):
        if time.monotonic() > deadline:
            network.remove_outside_interface(subnet)
            break
        time.sleep(0.02)
    if not _mounts_below(Paths.of(name).state):
        shutil.rmtree(Paths.of(name).state, ignore_errors=True)
    try:
        LABS_DIR.rmdir()
    except OSError:
        pass  # other labs are there, or none ever was
    if left := traces(name, subnet, living):
        raise LabError(f"lab {name!r} left behind: {'; '.join(left)}")
    return was
