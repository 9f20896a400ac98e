"""Faults that a test can put on a host: its shared file system, its link, its power."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from labkit import daemons, enter, network, power
from labkit.errors import LabError
from labkit.layout import SHARED
from labkit.record import LabRecord

TIMEOUT_S = 10.0


def _servers(lab: LabRecord, host: str) -> list[int]:
    """Pids of the processes that serve the host's shared file system."""
    lab.door(host)
    found = lab.holders[host].processes()
    return [process.pid for process in found if process.name == "bindfs"]


def _is_mounted(lab: LabRecord, host: str) -> bool:
    mounts = Path(f"/proc/{lab.door(host).pid}/mounts").read_text().splitlines()
    return any(line.split()[1:3] == [SHARED, "fuse"] for line in mounts)


def hang_shared(lab: LabRecord, host: str) -> None:
    """Every access waits, and cannot even be killed, until the file system comes back."""
    servers = _servers(lab, host)
    if not servers:
        raise LabError(f"{host}: no shared file system there: `scripts/lab fs restore {host}`")
    for pid in servers:
        os.kill(pid, signal.SIGSTOP)


def resume_shared(lab: LabRecord, host: str) -> None:
    for pid in _servers(lab, host):
        os.kill(pid, signal.SIGCONT)


def remove_shared(lab: LabRecord, host: str) -> None:
    """Open files give ENOTCONN; the directory is empty, and only root could write there."""
    for pid in _servers(lab, host):
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + TIMEOUT_S
    while _servers(lab, host):
        if time.monotonic() > deadline:
            raise LabError(f"{host}: bindfs is still there {TIMEOUT_S:g} s after SIGKILL")
        time.sleep(0.02)
    while _is_mounted(lab, host):
        enter.run(lab.door(host), ["umount", "--lazy", SHARED])


def restore_shared(lab: LabRecord, host: str) -> None:
    """Bring the file system back, whatever was done to it; harmless if it is there."""
    servers = _servers(lab, host)
    if not servers:
        while _is_mounted(lab, host):
            enter.run(lab.door(host), ["umount", "--lazy", SHARED])
        daemons.start(lab, "bindfs", [host])
    resume_shared(lab, host)


def shared_state(lab: LabRecord, host: str) -> str:
    """ok, hung or gone."""
    word = daemons.running(lab, host)["bindfs"]
    return {"running": "ok", "stopped": "hung", "dead": "gone"}[word]


def cut_link(lab: LabRecord, host: str) -> None:
    lab.door(host)
    network.cut_link(lab.switch_pid(), host)


def restore_link(lab: LabRecord, host: str) -> None:
    lab.door(host)
    network.restore_link(lab.switch_pid(), host)


def kill_node(lab: LabRecord, host: str) -> None:
    power.power_off(lab, host)


def start_node(lab: LabRecord, host: str) -> LabRecord:
    """Power the host on and start its daemons; no wait for Slurm's opinion of it."""
    if not lab.is_host_up(host):
        lab = power.power_on(lab, host)
    for daemon in lab.host(host).daemons:
        daemons.start(lab, daemon, [host])
    return lab
