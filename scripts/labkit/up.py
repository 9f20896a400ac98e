"""Bringing a lab up; on one that is up already, mending what is broken."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from labkit import (
    accounting,
    cgroups,
    daemons,
    down,
    etcdir,
    faults,
    layout,
    network,
    power,
    prerequisites,
)
from labkit import record as records
from labkit.enter import ROOT_PATH
from labkit.errors import LabError
from labkit.layout import HOME_PARENT, SCRATCH, SHARED, USERS, LabConfig, Paths
from labkit.record import LabRecord
from labkit.slurmconf import (
    WIDE_HARDWARE,
    Hardware,
    SlurmSettings,
    all_files,
    parse_hardware,
)


def real_hardware(root: Path) -> Hardware:
    """What this machine has, in Slurm's own words."""
    argv = ["slurmd", "-C"] if root == Path("/") else ["chroot", str(root), "slurmd", "-C"]
    result = subprocess.run(
        argv, capture_output=True, text=True, env={"PATH": ROOT_PATH}, timeout=30
    )
    try:
        return parse_hardware(result.stdout)
    except KeyError as error:
        raise LabError(f"`{' '.join(argv)}` says nothing of {error}: {result.stdout}") from error


def slurm_settings(lab: LabRecord) -> SlurmSettings:
    real = lab.config.profile == "real"
    root = Path(lab.config.slurm_root)
    major, minor = lab.slurm_version.split(".")[:2]
    return SlurmSettings(
        cluster=lab.config.name,
        profile=lab.config.profile,
        version=(int(major), int(minor)),
        nodes=tuple((host.name, lab.address(host.name)) for host in lab.nodes),
        controller=("ctl", lab.address("ctl")),
        hardware=real_hardware(root) if real else WIDE_HARDWARE,
        cgroup_version=cgroups.version(cgroups.detect()) if real else 0,
        accounting=lab.config.accounting,
        conf=lab.config.conf,
    )


def _make_shared(paths: Paths) -> None:
    """The tree that every host sees at /exa/shared."""

    def inside(path: str) -> Path:
        return paths.shared / Path(path).relative_to(SHARED)

    for directory, mode in ((inside(HOME_PARENT), 0o755), (inside(SCRATCH), 0o1777)):
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(mode)
    for user in USERS:
        home = inside(user.home)
        home.mkdir(exist_ok=True)
        home.chmod(0o700)
        os.chown(home, user.uid, user.uid)


def _create(config: LabConfig, slurm_version: str) -> LabRecord:
    """Make the directories and files of a lab of which nothing runs yet."""
    others = [records.load(name) for name in layout.lab_names() if name != config.name]
    taken = network.used_subnets() | {other.subnet for other in others if other}
    lab = LabRecord(
        config,
        network.choose_subnet(taken),
        slurm_version,
        tuple(sorted(os.sched_getaffinity(0))),
    )
    layout.LABS_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)
    lab.paths.state.mkdir(mode=0o700)
    lab.save()
    _make_shared(lab.paths)
    etcdir.build(
        lab.paths.etc,
        Path(config.slurm_root),
        lab.subnet,
        list(lab.hosts.values()),
        all_files(slurm_settings(lab)),
    )
    if config.accounting:
        accounting.write_configuration(lab.paths.etc)
    return power.start_switch(lab)


def _mend(lab: LabRecord) -> LabRecord:
    """Start what is missing and undo faults; on a new lab, this starts everything."""
    fabric = lab.switch_pid()
    for name in lab.hosts:
        if not lab.is_host_up(name):
            lab = power.power_on(lab, name)
    for name in set(lab.hosts) - network.connected_hosts(fabric):
        network.restore_link(fabric, name)
    for name in lab.hosts:
        faults.restore_shared(lab, name)
    daemons.start_all(lab)
    daemons.await_idle(lab)
    if lab.config.accounting:
        accounting.add_users(lab)
    return lab


def bring_up(config: LabConfig, slurm_version: str) -> tuple[LabRecord, bool]:
    """Return the running lab and whether it was made now (False: it was up already).

    Raises LabError if a lab of that name but with other settings is up, or if it does not come
    up; in that case nothing of it stays.
    """
    config.validate()
    prerequisites.ensure_devices()
    lab = records.load(config.name)
    if lab is not None and lab.any_alive():
        if differences := lab.config.differences(config):
            raise LabError(
                f"lab {config.name!r} is up with other settings: {'; '.join(differences)}. "
                f"`scripts/lab down --name {config.name}` first, or choose another --name"
            )
        return _mend(lab), False
    down.take_down(config.name)
    try:
        return _mend(_create(config, slurm_version)), True
    except BaseException:
        if not os.environ.get("EXASLURM_LAB_KEEP_FAILED"):
            down.take_down(config.name)
        raise
