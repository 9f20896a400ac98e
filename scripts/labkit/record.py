"""What is remembered of a running lab: its settings and the processes that hold its hosts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from labkit import layout, network, processes
from labkit.enter import Doorway
from labkit.errors import LabError, NotUpError, UsageError
from labkit.layout import Host, LabConfig, Paths


@dataclass(frozen=True)
class Holder:
    """The first process of a host; the host lives exactly as long as it."""

    pid: int
    started: int  # clock ticks after boot: tells it from a later process with the same pid
    cgroups: tuple[str, ...] = ()

    @property
    def alive(self) -> bool:
        return processes.is_alive(self.pid, self.started)

    def processes(self) -> list[processes.Process]:
        """All processes of the host, the holder among them; none if it is dead."""
        namespace = processes.pid_namespace(self.pid) if self.alive else None
        return processes.in_namespaces({namespace}) if namespace else []


@dataclass(frozen=True)
class LabRecord:
    config: LabConfig
    subnet: int
    slurm_version: str
    machine_cores: tuple[int, ...]
    fabric: Holder | None = None
    holders: dict[str, Holder] = field(default_factory=dict)

    @property
    def paths(self) -> Paths:
        return Paths.of(self.config.name)

    @property
    def hosts(self) -> dict[str, Host]:
        return layout.plan_hosts(self.config, list(self.machine_cores))

    @property
    def nodes(self) -> list[Host]:
        return [host for host in self.hosts.values() if host.is_node]

    def address(self, host: str) -> str:
        return network.address(self.subnet, self.hosts[host].number)

    def host(self, name: str) -> Host:
        """Raises UsageError that names the hosts there are."""
        try:
            return self.hosts[name]
        except KeyError as error:
            known = ", ".join(self.hosts)
            raise UsageError(f"no host {name!r} in lab {self.config.name!r}; it has {known}") from (
                error
            )

    def is_host_up(self, name: str) -> bool:
        holder = self.holders.get(name)
        return holder is not None and holder.alive

    def any_alive(self) -> bool:
        everyone = [*self.holders.values(), *([self.fabric] if self.fabric else [])]
        return any(holder.alive for holder in everyone)

    def door(self, name: str) -> Doorway:
        """How to enter the host. Raises NotUpError if it is down."""
        host = self.host(name)
        holder = self.holders.get(name)
        if holder is None or not holder.alive:
            raise NotUpError(f"{name} is down: `scripts/lab start-node {name}` starts it")
        return Doorway(name, holder.pid, host.cores, holder.cgroups)

    def switch_pid(self) -> int:
        if self.fabric is None or not self.fabric.alive:
            raise NotUpError(
                f"lab {self.config.name!r} has lost its switch: "
                "`scripts/lab down` and `up` make it anew"
            )
        return self.fabric.pid

    def with_holder(self, name: str, holder: Holder) -> LabRecord:
        return replace(self, holders={**self.holders, name: holder})

    def save(self) -> None:
        layout.write_json(self.paths.record, asdict(self))


def _holder(value: dict[str, Any]) -> Holder:
    return Holder(value["pid"], value["started"], tuple(value["cgroups"]))


def load(name: str) -> LabRecord | None:
    """Read the record of the lab; None if it has none."""
    path = Paths.of(name).record
    value: Any = layout.read_json(path)
    if value is None:
        return None
    try:
        return LabRecord(
            LabConfig(**value["config"]),
            value["subnet"],
            value["slurm_version"],
            tuple(value["machine_cores"]),
            _holder(value["fabric"]) if value["fabric"] else None,
            {host: _holder(holder) for host, holder in value["holders"].items()},
        )
    except (KeyError, TypeError) as error:
        raise LabError(
            f"{path}: written by another version of scripts/lab; `scripts/lab down` removes it"
        ) from error


def load_running(name: str) -> LabRecord:
    """Read the record of a lab that is up. Raises NotUpError if it is not."""
    record = load(name)
    if record is None or not record.any_alive():
        raise NotUpError(f"lab {name!r} is not up: `scripts/lab up --name {name}` starts it")
    return record
