"""How much memory the step may use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

MIB = 1 << 20


def usable_mib(
    environ: Mapping[str, str], *, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")
) -> int:
    """The least of: memory of the machine, Slurm's grant, the limits of our cgroups (MiB)."""
    limits = [total_mib(proc)]
    granted = environ.get("SLURM_MEM_PER_NODE", "")
    if granted.isdigit() and int(granted) > 0:  # 0: all of the node
        limits.append(int(granted))
    limits += [value // MIB for value in cgroup_limits(proc, cgroup)]
    return min(limits)


def total_mib(proc: Path) -> int:
    """MemTotal of the machine in MiB."""
    for line in (proc / "meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) // 1024
    raise ValueError(f"{proc}/meminfo has no MemTotal")


def memory_cgroup(proc: Path, cgroup: Path) -> tuple[Path, Path] | None:
    """(our memory cgroup's directory, root of its hierarchy), for cgroup v1 and v2."""
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
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


def cgroup_limits(proc: Path, cgroup: Path) -> list[int]:
    """Limits in bytes of our memory cgroup and of all above it."""
    place = memory_cgroup(proc, cgroup)
    if place is None:
        return []
    directory, root = place
    found = []
    while True:
        for name in ("memory.max", "memory.limit_in_bytes"):
            try:
                text = (directory / name).read_text(encoding="ascii").strip()
            except OSError:
                continue
            # v1 says "no limit" with a number near 2^63.
            if text.isdigit() and int(text) < 1 << 60:
                found.append(int(text))
        if directory == root or root not in directory.parents:
            return found
        directory = directory.parent


def oom_kills(*, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """How often the kernel killed for memory in our cgroup; None where nothing counts it."""
    place = memory_cgroup(proc, cgroup)
    if place is None:
        return None
    for name in ("memory.events", "memory.oom_control"):
        try:
            text = (place[0] / name).read_text(encoding="ascii")
        except OSError:
            continue
        for line in text.splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill" and value.strip().isdigit():
                return int(value)
    return None
