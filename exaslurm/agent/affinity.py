"""Where the processes of an engine really run, against where they were planned to."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.numbers import ranges
from exaslurm.core.topology import UNKNOWN, NodeTopology

PROC = Path("/proc")
# The policy of the first areas is the process's own; a walk over all of them takes long.
_NUMA_MAPS_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlace:
    """One process. ``cpus`` are those that any of its threads may run on; ``mem_nodes`` the NUMA
    nodes that its memory policy binds it to (empty: it is bound to none)."""

    pid: int
    name: str
    cpus: tuple[int, ...]
    mem_nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlaceSeen:
    """All processes of an engine together; ``off_plan`` says what is not as planned."""

    cpus: tuple[int, ...]
    mem_nodes: tuple[int, ...]
    off_plan: str | None


def look(
    binding: ReplicaBinding,
    pids: Iterable[int],
    topology: NodeTopology = UNKNOWN,
    proc: Path = PROC,
) -> EnginePlaceSeen | None:
    """The processes of an engine, from /proc; None if none of them lives."""
    found = places_of(pids, memory=bool(binding.mem_nodes), proc=proc)
    if not found:
        return None
    return EnginePlaceSeen(
        cpus=tuple(sorted({cpu for place in found for cpu in place.cpus})),
        mem_nodes=tuple(sorted({node for place in found for node in place.mem_nodes})),
        off_plan=off_plan(binding, found, topology),
    )


def places_of(pids: Iterable[int], *, memory: bool, proc: Path = PROC) -> list[ProcessPlace]:
    """Each process that lives, by number. ``memory``: look at memory policies too."""
    found = []
    for pid in sorted(pids):
        with contextlib.suppress(OSError):
            name, cpus = _status(proc / str(pid) / "status")
            for thread in os.listdir(proc / str(pid) / "task"):
                with contextlib.suppress(OSError):
                    cpus |= _status(proc / str(pid) / "task" / thread / "status")[1]
            bound = _bound_to(proc / str(pid) / "numa_maps") if memory else ()
            found.append(
                ProcessPlace(pid=pid, name=name, cpus=tuple(sorted(cpus)), mem_nodes=bound)
            )
    return found


def off_plan(
    binding: ReplicaBinding, places: Sequence[ProcessPlace], topology: NodeTopology = UNKNOWN
) -> str | None:
    """What is not as planned, None if all is. Replicas that share cores have no plan.

    No process may run anywhere else, and together they use every core (of its hardware threads
    one is enough: vLLM binds one compute thread to each core)."""
    if not binding.pinned:
        return None
    planned = set(binding.cores)
    for place in places:
        if not set(place.cpus) <= planned:
            return (
                f"planned for CPUs {ranges(binding.cores)}, but process {place.pid} "
                f"({place.name}) may run on {ranges(place.cpus)}{_and_more(places, planned)}"
            )
    seen = {cpu for place in places for cpu in place.cpus}
    if seen != planned and _unused(planned, seen, topology):
        return f"planned for CPUs {ranges(binding.cores)}, but it may run on {ranges(seen)} only"
    for place in places:
        is_bound = bool(place.mem_nodes) and set(place.mem_nodes) <= set(binding.mem_nodes)
        if binding.mem_nodes and not is_bound:
            bound = f"from {ranges(place.mem_nodes)}" if place.mem_nodes else "from any"
            return (
                f"memory planned on NUMA node {ranges(binding.mem_nodes)}, but process "
                f"{place.pid} ({place.name}) takes it {bound}"
            )
    return None


def _unused(planned: Collection[int], seen: Collection[int], topology: NodeTopology) -> bool:
    """Whether a planned core is not used by any thread."""
    cores = [set(core.cpus) & set(planned) for core in topology.cores]
    cores += [{cpu} for cpu in set(planned) - set(topology.cpus)]
    return any(core and not core & set(seen) for core in cores)


def _and_more(places: Sequence[ProcessPlace], planned: Collection[int]) -> str:
    more = sum(not set(place.cpus) <= set(planned) for place in places) - 1
    return f", and {more} more of its processes" if more else ""


def _status(path: Path) -> tuple[str, set[int]]:
    """Name and allowed CPUs of a thread."""
    name, cpus = "?", set[int]()
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key == "Name":
            name = value.strip()
        elif key == "Cpus_allowed_list":
            cpus = _numbers(value)
    return name, cpus


def _bound_to(path: Path) -> tuple[int, ...]:
    """NUMA nodes of the memory policy: ``7f... bind:0-1 file=...``."""
    with path.open("rb") as file:
        text = os.read(file.fileno(), _NUMA_MAPS_BYTES).decode(errors="replace")
    found = re.search(r"^\S+ bind(?:=\w+)*(?::| )([\d,-]+)", text, re.MULTILINE)
    return tuple(sorted(_numbers(found.group(1)))) if found else ()


def _numbers(text: str) -> set[int]:
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
