"""How much memory the step may use, how much of it is used, and whether the kernel killed for it.

Slurm limits a step by memory cgroups of either version: version 1 has a hierarchy of its own
(``memory.limit_in_bytes``, ``memory.usage_in_bytes``, ``memory.oom_control``), version 2 one for
everything (``memory.max``, ``memory.current``, ``memory.events``), and both may be mounted at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from exaslurm.core.cell import MemoryFigures

MIB = 1 << 20
PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
# v1 says "no limit" with a number near 2^63.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """``cgroup``: the directory of the limit as the kernel names it (``/slurm/...``)."""

    limit_bytes: int
    cgroup: str
    directory: Path


def usable_mib(environ: Mapping[str, str], *, proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """The least of: memory of the machine, Slurm's grant, the limits of our cgroups (MiB)."""
    limits = [total_mib(proc)]
    granted = environ.get("SLURM_MEM_PER_NODE", "")
    if granted.isdigit() and int(granted) > 0:  # 0: all of the node
        limits.append(int(granted))
    limits += [found.limit_bytes // MIB for found in cgroup_limits(proc, cgroup)]
    return min(limits)


def total_mib(proc: Path) -> int:
    """MemTotal of the machine in MiB."""
    return _meminfo(proc)["MemTotal"] // 1024


def _meminfo(proc: Path) -> dict[str, int]:
    """/proc/meminfo in KiB; ValueError without MemTotal."""
    found = {}
    for line in (proc / "meminfo").read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        with contextlib.suppress(ValueError, IndexError):
            found[name] = int(rest.split()[0])
    if "MemTotal" not in found:
        raise ValueError(f"{proc}/meminfo has no MemTotal")
    return found


def memory_cgroup(proc: Path, cgroup: Path, pid: str = "self") -> tuple[Path, Path] | None:
    """(the memory cgroup's directory of a process, root of its hierarchy), for cgroup v1 and v2."""
    try:
        lines = (proc / pid / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    unified: tuple[Path, Path] | None = None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            root = cgroup / "memory"
            return root / path.lstrip("/"), root
        if not controllers:
            unified = cgroup / path.lstrip("/"), cgroup
    return unified


def cgroup_limits(proc: Path, cgroup: Path, pid: str = "self") -> list[MemoryLimit]:
    """Limits of a process' memory cgroup and of all above it, the innermost first."""
    found = []
    for directory, root in _upwards(proc, cgroup, pid):
        for name in ("memory.max", "memory.limit_in_bytes"):
            value = _number(directory / name)
            if value is not None and value < _NO_LIMIT:
                shown = "/" + str(directory.relative_to(root)) if directory != root else "/"
                found.append(MemoryLimit(value, shown, directory))
    return found


def tightest(proc: Path = PROC, cgroup: Path = CGROUP, pid: str = "self") -> MemoryLimit | None:
    """The lowest limit that holds for a process; None where there is none, or one that the machine
    has less memory than."""
    limits = cgroup_limits(proc, cgroup, pid)
    lowest = min(limits, key=lambda item: item.limit_bytes, default=None)
    if lowest is None or lowest.limit_bytes // MIB >= total_mib(proc):
        return None
    return lowest


def memory_figures(*, proc: Path = PROC, cgroup: Path = CGROUP) -> MemoryFigures:
    """Of the limit with least to spare, the machine's or a cgroup's. Page cache that the kernel can
    take back at once does not count as used."""
    machine = _meminfo(proc)
    total_kib = machine["MemTotal"]
    available = machine.get("MemAvailable", total_kib)  # every kernel since 3.14 tells
    best = MemoryFigures(
        used_mib=(total_kib - available) // 1024,
        limit_mib=total_kib // 1024,
        bound="node",
        stalled_pct=_stalled(proc / "pressure" / "memory"),
    )
    for limit in cgroup_limits(proc, cgroup):
        used = _used_bytes(limit.directory)
        if used is None or limit.limit_bytes // MIB >= total_kib // 1024:
            continue
        stalled = _stalled(limit.directory / "memory.pressure")
        figures = MemoryFigures(
            used_mib=used // MIB,
            limit_mib=limit.limit_bytes // MIB,
            bound=limit.cgroup,
            stalled_pct=best.stalled_pct if stalled is None else stalled,
        )
        if figures.free_mib < best.free_mib:
            best = figures
    return best


def oom_kills(pid: str = "self", *, proc: Path = PROC, cgroup: Path = CGROUP) -> int | None:
    """How often the kernel killed for memory in a process' cgroup; None where nothing counts it."""
    place = memory_cgroup(proc, cgroup, pid)
    if place is None:
        return None
    for name in ("memory.events", "memory.oom_control"):
        value = _keyed(place[0] / name).get("oom_kill")
        if value is not None:
            return value
    return None


def _upwards(proc: Path, cgroup: Path, pid: str) -> Iterator[tuple[Path, Path]]:
    place = memory_cgroup(proc, cgroup, pid)
    if place is None:
        return
    directory, root = place
    while True:
        yield directory, root
        if directory == root or root not in directory.parents:
            return
        directory = directory.parent


def _used_bytes(directory: Path) -> int | None:
    used = _number(directory / "memory.current")
    if used is None:
        used = _number(directory / "memory.usage_in_bytes")
    if used is None:
        return None
    stat = _keyed(directory / "memory.stat")
    return max(0, used - stat.get("total_inactive_file", stat.get("inactive_file", 0)))


def _stalled(path: Path) -> float | None:
    """PSI: share of the last ten seconds in which some task waited for memory, in percent."""
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text(encoding="ascii").splitlines():
            kind, *values = line.split()
            if kind == "some":
                return float(dict(item.split("=") for item in values)["avg10"])
    return None


def _number(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text(encoding="ascii"))
    return None


def _keyed(path: Path) -> dict[str, int]:
    """A file of ``key value`` lines."""
    found = {}
    with contextlib.suppress(OSError):
        for line in path.read_text(encoding="ascii").splitlines():
            key, _, value = line.partition(" ")
            if value.strip().isdigit():
                found[key] = int(value)
    return found
