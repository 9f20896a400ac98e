"""What the machine must have before a lab can come up, and how to get it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labkit.enter import ROOT_PATH
from labkit.errors import PrerequisiteError
from labkit.layout import CHROOT_DIR
from labkit.slurmconf import FIRST_GPU_DEVICE, GPUS_PER_NODE

# Command -> Debian package that brings it.
MACHINE_COMMANDS = {"ip": "iproute2", "nsenter": "util-linux"}
HOST_COMMANDS = {
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "sbatch": "slurm-wlm",
    "munged": "munge",
    "bindfs": "bindfs",
    "setpriv": "util-linux",
    "ps": "procps",  # with kill and pgrep; not in every small Debian
}
ACCOUNTING_COMMANDS = {
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server-core",
    "mariadb-install-db": "mariadb-server-core",
    "mariadb": "mariadb-client-core",
}
POLICY = Path("/usr/sbin/policy-rc.d")


def require_root() -> None:
    if os.geteuid() != 0:
        raise PrerequisiteError("a lab makes namespaces and mounts: run this as root")


def _find(command: str, root: Path) -> bool:
    return any((root / part.lstrip("/") / command).is_file() for part in ROOT_PATH.split(":"))


def host_commands(accounting: bool) -> dict[str, str]:
    """Commands that run inside a host, each with the package that brings it."""
    return {**HOST_COMMANDS, **(ACCOUNTING_COMMANDS if accounting else {})}


def missing_packages(root: Path, accounting: bool = False) -> list[str]:
    """Packages to be installed on the machine for a lab with the system of `root`."""
    machine = Path("/")
    needed = {**MACHINE_COMMANDS, **(host_commands(accounting) if root == machine else {})}
    return sorted({needed[command] for command in needed if not _find(command, machine)})


def _apt_line(packages: list[str]) -> list[str]:
    return ["apt-get", "install", "--yes", "--no-install-recommends", *packages]


@contextmanager
def _services_not_started() -> Iterator[None]:
    """Debian starts what it installs; the lab's daemons run in the lab, not on the machine."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()


def install(packages: list[str]) -> None:
    """Install Debian packages. Raises PrerequisiteError if apt-get fails."""
    if shutil.which("apt-get") is None:
        raise PrerequisiteError(f"no apt-get here; install by hand: {' '.join(packages)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with _services_not_started():
        for argv in (["apt-get", "update"], _apt_line(packages)):
            # stdout is kept for results.
            result = subprocess.run(argv, env=environment, stdout=sys.stderr, timeout=1800)
            if result.returncode and argv[1] == "install":
                line = " ".join(argv)
                raise PrerequisiteError(f"`{line}` failed ({result.returncode}); see above")


def has_command(command: str) -> bool:
    return _find(command, Path("/"))


def require_packages(packages: list[str], may_install: bool) -> None:
    """Install them if allowed. Raises PrerequisiteError that gives the apt-get line if not."""
    if packages and not may_install:
        line = " ".join(_apt_line(packages))
        raise PrerequisiteError(
            f"missing: {', '.join(packages)}; `{line}` installs them, or add --install"
        )
    if packages:
        install(packages)


def ensure_packages(root: Path, accounting: bool, may_install: bool) -> None:
    """Check that the machine, and the chroot if one is used, have what a lab runs."""
    require_packages(missing_packages(root, accounting), may_install)
    if packages := missing_packages(root, accounting):
        raise PrerequisiteError(f"still missing after the installation: {', '.join(packages)}")
    lacking = [command for command in host_commands(accounting) if not _find(command, root)]
    if lacking:
        raise PrerequisiteError(
            f"{root} has no {', '.join(lacking)}: `scripts/lab chroot {root}` completes it"
        )


def ensure_devices() -> None:
    """Raises PrerequisiteError if a device file that a lab needs is missing."""
    last = FIRST_GPU_DEVICE + GPUS_PER_NODE
    names = ["/dev/fuse", *(f"/dev/tty{number}" for number in range(FIRST_GPU_DEVICE, last))]
    absent = [name for name in names if not Path(name).exists()]
    if "/dev/fuse" in absent:
        raise PrerequisiteError("no /dev/fuse: `modprobe fuse`, or run outside this container")
    if absent:
        raise PrerequisiteError(f"no {', '.join(absent)}, which stand for the nodes' GPUs")


def slurm_version(root: Path) -> str:
    """Full version, such as 22.05.8, of the Slurm below `root`."""
    argv = ["slurmd", "-V"] if root == Path("/") else ["chroot", str(root), "slurmd", "-V"]
    environment = {"PATH": ROOT_PATH}
    result = subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=30)
    match = re.search(r"\d+\.\d+\.\d+", result.stdout)
    if match is None:
        raise PrerequisiteError(f"`{' '.join(argv)}` failed: {result.stderr.strip()}")
    return match.group()


def slurm_root(choice: str | None) -> Path:
    """Directory meant by --slurm: none, a known version, or a directory."""
    if choice is None or choice == "22.05":
        root = Path("/")
    elif choice == "24.11":
        root = CHROOT_DIR
    else:
        root = Path(choice).resolve()
    if not (root / "usr").is_dir():
        raise PrerequisiteError(f"no system in {root}: `scripts/lab chroot {root}` makes one")
    return root


def check_version(choice: str | None, version: str) -> None:
    if choice in ("22.05", "24.11") and not version.startswith(f"{choice}."):
        raise PrerequisiteError(
            f"--slurm {choice}: the machine's Slurm is {version}; leave --slurm out to use it"
        )
