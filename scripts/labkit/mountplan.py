"""Which mounts make up the root directory of a host.

A host sees the system directories of the machine (or of a chroot), and its own /tmp, /run,
/dev/shm, /etc, /var/log, /var/spool, /exa. The order counts: what stands later hides what
stands earlier.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from labkit.layout import LOCAL, PRIVATE_RUN, SHARED, SOFTWARE_DIR, Paths

# Made anew for each host, or of no use in one.
NOT_CARRIED = {"proc", "sys", "dev", "run", "tmp", "etc", "exa", "lost+found"}
# Directories of a host that lie on the machine's disk below the host's state directory.
OWN_DIRS = {
    "tmp": ("/tmp", 0o1777),
    "vartmp": ("/var/tmp", 0o1777),
    "log": ("/var/log", 0o755),
    "spool": ("/var/spool", 0o755),
    "local": (LOCAL, 0o1777),
}


@dataclass(frozen=True)
class Mount:
    """One step: `kind` is bind, symlink or a file system type."""

    kind: str
    source: str
    target: str
    options: str = ""
    recursive: bool = False
    read_only: bool = False
    mode: int | None = None


def _system_directories(root: Path) -> list[Mount]:
    steps = []
    for entry in sorted(root.iterdir()):
        if entry.name in NOT_CARRIED:
            continue
        if entry.is_symlink():
            steps.append(Mount("symlink", os.readlink(entry), f"/{entry.name}"))
        elif entry.is_dir():
            steps.append(Mount("bind", str(entry), f"/{entry.name}", recursive=True))
    return steps


def plan_mounts(
    paths: Paths, host: str, root: Path, cgroups: list[Mount], source_tree: Path
) -> list[Mount]:
    """Return the steps for `host`, whose system is that of `root` (`/` or a chroot).

    `cgroups` are the mounts below /sys/fs/cgroup, if Slurm is to use them there.
    `source_tree` is shown at its own path in a chroot, where it would be missing.
    """
    own = paths.host(host)
    steps = _system_directories(root)
    if root != Path("/"):
        steps.append(Mount("bind", str(source_tree), str(source_tree), read_only=True))
    if SOFTWARE_DIR.is_dir():
        software = str(SOFTWARE_DIR)
        steps.append(Mount("bind", software, software, recursive=True, read_only=True))
    steps += [
        Mount("bind", str(paths.etc), "/etc"),
        Mount("bind", str(own / "hostname"), "/etc/hostname"),
        Mount("proc", "proc", "/proc"),
        # Mounted anew, for /sys/class/net to show this host's interfaces.
        Mount("sysfs", "sysfs", "/sys"),
        *cgroups,
        Mount("bind", "/dev", "/dev", recursive=True),
        Mount("tmpfs", "exa-shm", "/dev/shm", options="mode=1777,size=1g"),
        Mount("tmpfs", "exa-run", "/run", options="mode=755"),
        Mount("tmpfs", "exa-lock", "/run/lock", options="mode=1777,size=4m"),
        Mount("tmpfs", "exa-private", PRIVATE_RUN, options="mode=700,size=1m"),
        Mount("bind", str(paths.shared), f"{PRIVATE_RUN}/shared"),
        Mount("tmpfs", "exa", "/exa", options="mode=755,size=1m"),
        # What is seen while the shared file system is away: empty, and root's alone.
        Mount("tmpfs", "exa-no-shared", SHARED, options="mode=755,size=1m"),
    ]
    steps += [Mount("bind", str(own / name), target) for name, (target, _) in OWN_DIRS.items()]
    return steps
