"""What a cluster consists of, as ``scontrol show`` tells it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from exaslurm.slurm.client import Slurm

_NOTHING = ("", "(null)", "N/A", "n/a")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNode:
    """A node as Slurm knows it. ``usable_cpus`` are those that jobs may have; ``gpus`` by type (an
    empty type: Slurm does not tell)."""

    name: str
    cpus: int
    usable_cpus: int
    threads_per_core: int
    mem_mib: int
    gpus: tuple[tuple[str, int], ...]
    features: tuple[str, ...]
    partitions: tuple[str, ...]
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmPartition:
    """A partition. Times as Slurm writes them; None: no limit."""

    name: str
    is_default: bool
    max_nodes: int | None
    min_nodes: int
    max_time: str | None
    exclusive: bool
    is_up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Nodes, partitions and settings of a cluster."""

    nodes: tuple[SlurmNode, ...]
    partitions: tuple[SlurmPartition, ...]
    config: dict[str, str]


def take_inventory(slurm: Slurm) -> Inventory:
    """Ask Slurm, with three questions. Raises QueryFailed, CommandNotFound."""
    return Inventory(
        nodes=parse_nodes(slurm.query(["scontrol", "show", "node", "--oneliner"])),
        partitions=parse_partitions(slurm.query(["scontrol", "show", "partition", "--oneliner"])),
        config=parse_settings(slurm.query(["scontrol", "show", "config"])),
    )


def parse_nodes(text: str) -> tuple[SlurmNode, ...]:
    """``scontrol show node --oneliner``. Values with blanks (OS, Reason) are not read."""
    nodes = []
    for line in text.splitlines():
        name = _word(line, "NodeName")
        if not name:
            continue
        cpus = _count(line, "CPUTot")
        threads = _count(line, "ThreadsPerCore") or 1
        # CPUEfctv is there from 22.05 on.
        usable = _count(line, "CPUEfctv") or cpus - _count(line, "CoreSpecCount") * threads
        nodes.append(
            SlurmNode(
                name=name,
                cpus=cpus,
                usable_cpus=usable,
                threads_per_core=threads,
                mem_mib=_count(line, "RealMemory") - _count(line, "MemSpecLimit"),
                gpus=parse_gpus(_word(line, "Gres")),
                features=_list(_word(line, "AvailableFeatures")),
                partitions=_list(_word(line, "Partitions")),
                state=_word(line, "State"),
            )
        )
    return tuple(nodes)


def parse_partitions(text: str) -> tuple[SlurmPartition, ...]:
    """``scontrol show partition --oneliner``."""
    partitions = []
    for line in text.splitlines():
        name = _word(line, "PartitionName")
        if not name:
            continue
        most = _word(line, "MaxNodes")
        longest = _word(line, "MaxTime")
        partitions.append(
            SlurmPartition(
                name=name,
                is_default=_word(line, "Default") == "YES",
                max_nodes=int(most) if most.isdigit() else None,
                min_nodes=_count(line, "MinNodes"),
                max_time=longest if longest[:1].isdigit() else None,
                exclusive=_word(line, "OverSubscribe") == "EXCLUSIVE",
                is_up=_word(line, "State") == "UP",
            )
        )
    return tuple(partitions)


def parse_settings(text: str) -> dict[str, str]:
    """``scontrol show config``: lines of ``Key   = value``; others are headings."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def parse_gpus(gres: str) -> tuple[tuple[str, int], ...]:
    """GPUs in a GRES list such as ``gpu:a100:4(S:0-1),shard:16``."""
    found = []
    for item in re.sub(r"\([^)]*\)", "", gres).split(","):
        name, *rest = item.split(":")
        if name == "gpu" and rest and rest[-1].isdigit():
            found.append((rest[0] if len(rest) > 1 else "", int(rest[-1])))
    return tuple(found)


def _word(line: str, key: str) -> str:
    found = re.search(rf"(?:^|\s){key}=(\S*)", line)
    value = found.group(1) if found else ""
    return "" if value in _NOTHING else value


def _count(line: str, key: str) -> int:
    value = _word(line, key)
    return int(value) if value.isdigit() else 0


def _list(value: str) -> tuple[str, ...]:
    return tuple(word for word in value.split(",") if word)
