"""Small files of /sys and /proc: lists and masks of CPUs, numbers, PCI addresses."""

from __future__ import annotations

import os
import re
from pathlib import Path

PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
PCI_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
# The kernel can be built for 8192 CPUs; a list that goes much further is no list of CPUs, and would
# fill the memory.
_MOST_CPUS = 1 << 16


def read(path: Path) -> str | None:
    """Stripped text of a file; None where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def exists(path: Path) -> bool:
    """Whether it can be seen: what this user may not look into is not there for it (of
    ``Path.exists`` that is an error)."""
    return os.path.exists(path)


def read_int(path: Path) -> int | None:
    """A file's decimal number; None where there is none or it is negative (the kernel's
    "unknown")."""
    text = read(path)
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def cpu_list(text: str) -> tuple[int, ...]:
    """``0-3,8,10-11`` as numbers (the kernel's list format). Raises ValueError where it is none."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        end = int(last or first)
        if end >= _MOST_CPUS:
            raise ValueError(f"{part!r} is no list of CPUs")
        found.extend(range(int(first), end + 1))
    return tuple(found)


def cpu_mask(text: str) -> tuple[int, ...]:
    """``00000001,ffffffff`` as numbers: the kernel's mask format, hwloc's with ``0x`` (where an
    empty group between commas is zero, ``0xf...f`` is an endless set and gives none)."""
    if "f...f" in text:
        return ()
    value = 0
    for part in text.strip().split(","):
        digits = part.strip().removeprefix("0x")
        value = value << 32 | (int(digits, 16) if digits else 0)
    return bits(value)


def bits(value: int) -> tuple[int, ...]:
    """The places of the ones, lowest first."""
    return tuple(i for i in range(value.bit_length()) if value >> i & 1)


def as_list(cpus: tuple[int, ...]) -> str:
    """Numbers in the kernel's list format (``0-3,8``)."""
    parts: list[str] = []
    run: list[int] = []
    for cpu in [*sorted(cpus), None]:
        if run and (cpu is None or cpu != run[-1] + 1):
            parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
            run = []
        if cpu is not None:
            run.append(cpu)
    return ",".join(parts)


def cpus_of(directory: Path, name: str) -> tuple[int, ...]:
    """CPUs of ``<name>list``, or of the mask ``<name>`` / ``<name>_map`` of older kernels."""
    for listed in (f"{name}list", f"{name}_list"):
        text = read(directory / listed)
        if text:
            return cpu_list(text)
    for mask in (name, f"{name}_map", f"{name}map"):
        text = read(directory / mask)
        if text:
            return cpu_mask(text)
    return ()


def number(path: Path) -> int:
    """The number at the end of a name (``node12``: 12), 0 where there is none."""
    match = re.search(r"\d+$", path.name)
    return int(match.group()) if match else 0


def pci_of(path: Path) -> tuple[str | None, tuple[str, ...]]:
    """(PCI address of the device that a path in /sys leads to, the bridges above it from the root
    down)."""
    parts = [
        # os.path.realpath: to Path.resolve a link to itself is an error.
        part for part in Path(os.path.realpath(path)).parts
        if PCI_ADDRESS.fullmatch(part) or PCI_ROOT.fullmatch(part)
    ]  # fmt: skip
    last = max((i for i, part in enumerate(parts) if PCI_ADDRESS.fullmatch(part)), default=None)
    if last is None:
        return None, ()
    return parts[last], tuple(parts[:last])


def short_pci(address: str) -> str:
    """An address in the form of sysfs: lower case, a domain of four digits where they are enough
    (NVML writes eight), domain and function 0 where they are left out."""
    text = address.strip().lower()
    if "." not in text:
        text += ".0"
    if text.count(":") == 1:
        text = "0000:" + text
    domain, _, rest = text.partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def natural(name: str) -> tuple[tuple[str, int], ...]:
    """A key that sorts ``mlx5_10`` after ``mlx5_9``."""
    return tuple(
        (text, int(digits or -1))
        for text, digits in re.findall(r"(\D*)(\d*)", name)
        if text or digits
    )
