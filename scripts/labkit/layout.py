"""What a lab consists of: its settings, its hosts, their addresses, and where its files lie."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from labkit.errors import LabError, UsageError

LABS_DIR = Path("/var/lib/exaslurm-lab")
SOFTWARE_DIR = Path("/opt/exaslurm")
CHROOT_DIR = SOFTWARE_DIR / "debian13"
SHARED = "/exa/shared"
LOCAL = "/exa/local"
SCRATCH = "/exa/shared/scratch"
HOME_PARENT = "/exa/shared/home"
# In a host, only root can look into this directory; the shared file system is served from it.
PRIVATE_RUN = "/run/exaslurm-lab"

SERVICE_HOSTS = ("ctl", "login", "gateway")
PROFILES = ("wide", "real")
MIN_NODES = 2  # one for each partition
MAX_NODES = 200  # host numbers 11 to 210 of a /24
OUTSIDE_NUMBER = 254


@dataclass(frozen=True)
class User:
    """A person with an account in the lab and nowhere else."""

    name: str
    uid: int

    @property
    def home(self) -> str:
        return f"{HOME_PARENT}/{self.name}"


USERS = (User("exa1", 6001), User("exa2", 6002))


@dataclass(frozen=True)
class LabConfig:
    """What `lab up` was asked for; two labs with equal settings are the same lab."""

    name: str
    nodes: int
    profile: str
    slurm_root: str  # the root directory whose Slurm is used: "/" or a chroot
    accounting: bool
    conf: tuple[str, ...] = ()  # further lines of slurm.conf

    def __post_init__(self) -> None:
        object.__setattr__(self, "conf", tuple(self.conf))  # a list, from JSON

    def validate(self) -> None:
        """Raise UsageError if no such lab can exist."""
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,23}", self.name):
            raise UsageError(
                f"--name {self.name!r}: use up to 24 of a-z, 0-9 and -, beginning with a letter"
            )
        if not MIN_NODES <= self.nodes <= MAX_NODES:
            raise UsageError(f"--nodes {self.nodes}: use {MIN_NODES} to {MAX_NODES}")
        if self.profile not in PROFILES:
            raise UsageError(f"--profile {self.profile!r}: use one of {', '.join(PROFILES)}")
        for line in self.conf:
            if not re.fullmatch(r"[A-Za-z]+=[^\n]+", line):
                raise UsageError(f"--conf {line!r}: use KEY=VALUE, as in slurm.conf")

    def differences(self, other: LabConfig) -> list[str]:
        """Name every setting in which `other` differs, with both values."""
        mine, theirs = asdict(self), asdict(other)
        return [
            f"{key} is {mine[key]!r}, asked for {theirs[key]!r}"
            for key in mine
            if mine[key] != theirs[key]
        ]


@dataclass(frozen=True)
class Host:
    """One machine of the lab."""

    name: str
    number: int  # last part of its address
    cores: tuple[int, ...]  # cores of the real machine that it may use; empty: all
    accounting: bool = False  # of the controller: it carries the accounting database too

    @property
    def is_node(self) -> bool:
        return self.name not in SERVICE_HOSTS

    @property
    def daemons(self) -> tuple[str, ...]:
        """Process names that belong to a running host, in the order in which they start."""
        everywhere = ("munged", "bindfs")
        if self.name == "ctl":
            database = ("mariadbd", "slurmdbd") if self.accounting else ()
            return (*everywhere, *database, "slurmctld")
        return (*everywhere, "slurmd") if self.is_node else everywhere


def node_names(nodes: int) -> list[str]:
    return [f"c{index}" for index in range(1, nodes + 1)]


def plan_hosts(config: LabConfig, machine_cores: list[int]) -> dict[str, Host]:
    """Deal the machine's cores over the nodes, so that in `wide` each behaves like its own.

    In `real`, Slurm itself binds to cores, so every node sees them all.
    """
    hosts = {
        name: Host(name, index, (), config.accounting)
        for index, name in enumerate(SERVICE_HOSTS, start=1)
    }
    for index, name in enumerate(node_names(config.nodes)):
        core = machine_cores[index % len(machine_cores)]
        cores = (core,) if config.profile == "wide" else ()
        hosts[name] = Host(name, 11 + index, cores)
    return hosts


@dataclass(frozen=True)
class Paths:
    """Where a lab keeps its files on the real machine; all of it is root's alone."""

    state: Path

    @classmethod
    def of(cls, name: str) -> Paths:
        return cls(LABS_DIR / name)

    @property
    def record(self) -> Path:
        return self.state / "lab.json"

    @property
    def etc(self) -> Path:
        return self.state / "etc"

    @property
    def shared(self) -> Path:
        return self.state / "shared"

    def host(self, name: str) -> Path:
        return self.state / "hosts" / name


def default_name() -> str:
    return os.environ.get("EXASLURM_LAB") or "lab"


def lab_names() -> list[str]:
    """Labs that have a state directory, running or not."""
    if not LABS_DIR.is_dir():
        return []
    return sorted(entry.name for entry in LABS_DIR.iterdir() if entry.is_dir())


def read_json(path: Path) -> object:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise LabError(f"{path}: not readable ({error}); `scripts/lab down` removes it") from error


def write_json(path: Path, value: object) -> None:
    """Write in one step, so that a reader never sees half a file."""
    draft = path.with_name(path.name + ".new")
    draft.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
    draft.replace(path)
