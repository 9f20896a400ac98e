"""One cgroup for each host, in every hierarchy that Slurm may use, version 1 or 2.

A host gets a cgroup *namespace*, so that its slurmd takes the host's cgroup for the root, as on
a machine of its own; two labs that both have a c1 do not meet.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import LabError, PrerequisiteError
from labkit.mountplan import Mount

NEEDED = ("cpuset", "freezer", "memory", "cpuacct", "devices")
MOUNT_POINT = "/sys/fs/cgroup"
USERS = "user.slice"
REMOVE_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Hierarchy:
    """A mounted cgroup hierarchy of the real machine."""

    version: int
    controllers: tuple[str, ...]  # of version 1
    mount_point: Path


@dataclass(frozen=True)
class Place:
    """Where a host's processes live in one hierarchy. In version 1 all three are the same."""

    root: str  # what the host sees as the root of the hierarchy
    init: str  # for its first process
    users: str  # for what is started later


def parse_mounts(mountinfo: str) -> list[Hierarchy]:
    """Read the hierarchies out of the text of /proc/self/mountinfo."""
    found = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4])
        fstype, _, options = after.split()[:3]
        if fstype == "cgroup2":
            found.append(Hierarchy(2, (), point))
        elif fstype == "cgroup":
            names = tuple(name for name in options.split(",") if name in NEEDED)
            if names:
                found.append(Hierarchy(1, names, point))
    return found


def detect() -> list[Hierarchy]:
    """Hierarchies that Slurm needs here. Raises PrerequisiteError if there are none."""
    found = parse_mounts(Path("/proc/self/mountinfo").read_text())
    first = [hierarchy for hierarchy in found if hierarchy.version == 1]
    if {name for hierarchy in first for name in hierarchy.controllers} >= {"cpuset", "freezer"}:
        return first
    second = [hierarchy for hierarchy in found if hierarchy.version == 2]
    if second and "cpuset" in (second[0].mount_point / "cgroup.controllers").read_text().split():
        return second[:1]
    raise PrerequisiteError(
        "profile real: no cgroup hierarchy with the cpuset controller is mounted; "
        "use --profile wide, which needs no cgroups"
    )


def version(hierarchies: list[Hierarchy]) -> int:
    return hierarchies[0].version if hierarchies else 0


def lab_directory(hierarchy: Hierarchy, lab: str) -> Path:
    return hierarchy.mount_point / f"exaslurm-{lab}"


def host_directories(hierarchies: list[Hierarchy], lab: str, host: str) -> list[Path]:
    return [lab_directory(hierarchy, lab) / host for hierarchy in hierarchies]


def _copy_cpuset(directory: Path) -> None:
    """A new version-1 cpuset holds no core, and nothing can join it until it does."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        (directory / name).write_text((directory.parent / name).read_text())


def _delegate(directory: Path) -> None:
    """Offer every controller of `directory` to its children (version 2)."""
    for name in (directory / "cgroup.controllers").read_text().split():
        _enable(directory, name)


def _enable(directory: Path, controller: str) -> None:
    try:
        (directory / "cgroup.subtree_control").write_text(f"+{controller}")
    except OSError as error:
        # Some controllers cannot be handed down everywhere; Slurm says which one it misses.
        if error.errno not in (errno.EINVAL, errno.ENOENT, errno.EOPNOTSUPP):
            raise


def create(hierarchies: list[Hierarchy], lab: str, host: str) -> list[Place]:
    """Make the host's cgroups, the parts of all hierarchies in which its processes will live."""
    places = []
    for hierarchy in hierarchies:
        parent = lab_directory(hierarchy, lab)
        directory = parent / host
        if hierarchy.version == 2:
            # A host that is started again finds here what its last life handed on.
            _remove_tree(directory, time.monotonic() + REMOVE_TIMEOUT_S)
            inner = (directory / "init", directory / USERS)
            for path in inner:
                path.mkdir(parents=True)
            _delegate(hierarchy.mount_point)
            _delegate(parent)
        else:
            inner = (directory, directory)
            directory.mkdir(parents=True, exist_ok=True)
            if "cpuset" in hierarchy.controllers:
                _copy_cpuset(parent)
                _copy_cpuset(directory)
        places.append(Place(str(directory), *map(str, inner)))
    return places


def hand_on(places: list[Place]) -> None:
    """Offer the controllers to Slurm, once the first process has moved to the inner cgroup.

    In version 2 only a cgroup without processes of its own can hand controllers on. Slurm makes
    its scopes in systemd's `system.slice`, which a host without systemd has not.
    """
    for place in places:
        if place.init != place.root:
            _delegate(Path(place.root))
            services = Path(place.root, "system.slice")
            services.mkdir()
            _delegate(services)


def for_slurmd(users: Sequence[str]) -> list[str]:
    """Cgroups for a slurmd to be started on the host whose `users` places are given.

    In version 2 it divides the one that it is started in, after which nothing else can join, not
    even the next slurmd; so each gets one of its own.
    """
    directories = []
    for directory in map(Path, users):
        if directory.name == USERS:
            lives = len(list(directory.parent.glob("slurmd-*.service")))
            own = directory.parent / f"slurmd-{lives + 1}.service"
            own.mkdir()
            directories.append(str(own))
        else:
            directories.append(str(directory))
    return directories


def plan_cgroup_mounts(hierarchies: list[Hierarchy]) -> list[Mount]:
    """Mount steps that show a host its own cgroups below /sys/fs/cgroup."""
    if version(hierarchies) == 2:
        return [Mount("cgroup2", "cgroup2", MOUNT_POINT)]
    steps = []
    if hierarchies:
        steps.append(Mount("tmpfs", "exa-cgroups", MOUNT_POINT, options="mode=755,size=1m"))
    for hierarchy in hierarchies:
        names = ",".join(hierarchy.controllers)
        for name in hierarchy.controllers:
            target = f"{MOUNT_POINT}/{name}"
            steps.append(Mount("cgroup", "cgroup", target, options=names))
    return steps


def directories_left(lab: str) -> list[Path]:
    """Directories of the lab in any hierarchy."""
    found = parse_mounts(Path("/proc/self/mountinfo").read_text())
    places = (lab_directory(hierarchy, lab) for hierarchy in found)
    return [place for place in places if place.is_dir()]


def _remove_tree(top: Path, deadline: float) -> None:
    """Remove a cgroup and those below it, innermost first; their processes must have ended."""
    inner = sorted((path for path in top.rglob("*") if path.is_dir()), reverse=True)
    for directory in [*inner, top]:
        while True:
            try:
                directory.rmdir()
            except FileNotFoundError:
                pass
            except OSError as error:
                # The kernel lets go of ended processes a moment after they are gone.
                if error.errno == errno.EBUSY and time.monotonic() < deadline:
                    time.sleep(0.05)
                    continue
                raise LabError(f"{directory}: cannot be removed: {error.strerror}") from error
            break


def remove(lab: str) -> None:
    """Remove all cgroups of the lab."""
    deadline = time.monotonic() + REMOVE_TIMEOUT_S
    for top in directories_left(lab):
        _remove_tree(top, deadline)
