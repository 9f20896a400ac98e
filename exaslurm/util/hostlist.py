"""Slurm's folded host names (``nid[001-004,7]``) to single ones, without asking Slurm.

Inside a container, or on a node without Slurm's commands, ``scontrol show hostnames`` does not
exist; splitting at commas is wrong as soon as there is a bracket.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

# A typo such as n[1-9999999999] must not fill the memory.
MAX_HOSTS = 1_000_000

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand(hostlist: str) -> list[str]:
    """The host names of a hostlist in order, repeated ones kept, as ``scontrol show hostnames``.

    Several brackets in one name multiply, the last one counting fastest. Unlike Slurm 22.05, a
    name may go on behind its last bracket (``n[1-2]-ib``). Raises ValueError that quotes the list
    and says what is wrong with it.
    """
    names: list[str] = []
    for part in _split(hostlist):
        names.extend(_expand_part(part, hostlist))
        if len(names) > MAX_HOSTS:
            raise ValueError(f"hostlist {hostlist!r}: more than {MAX_HOSTS} hosts")
    return names


def _split(hostlist: str) -> Iterator[str]:
    """The parts between the commas that stand outside of brackets."""
    depth = start = 0
    for index, char in enumerate(hostlist):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and depth == 0:
            yield hostlist[start:index]
            start = index + 1
        if depth not in (0, 1):
            what = "a bracket in a bracket" if depth > 1 else "a ']' without its '['"
            raise ValueError(f"hostlist {hostlist!r}: {what} at character {index + 1}")
    if depth:
        raise ValueError(f"hostlist {hostlist!r}: a '[' without its ']'")
    yield hostlist[start:]


def _expand_part(part: str, hostlist: str) -> list[str]:
    part = part.strip()
    if not part:
        return []
    # Literal text and bracket contents take turns: n[1-2]x -> "n", "1-2", "x".
    pieces = re.split(r"[\[\]]", part)
    choices: list[list[str]] = []
    total = 1
    for index, piece in enumerate(pieces):
        choices.append(_numbers(piece, hostlist) if index % 2 else [piece])
        total *= len(choices[-1])
        if total > MAX_HOSTS:
            raise ValueError(f"hostlist {hostlist!r}: more than {MAX_HOSTS} hosts")
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def _numbers(ranges: str, hostlist: str) -> list[str]:
    """``08-11,3`` -> 08 09 10 11 3: each number is as wide as the first one of its range."""
    numbers: list[str] = []
    for item in ranges.split(","):
        match = _RANGE.fullmatch(item)
        if match is None:
            raise ValueError(f"hostlist {hostlist!r}: {item!r} is not a number or a range")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise ValueError(f"hostlist {hostlist!r}: the range {item!r} runs backwards")
        if int(last) - int(first) >= MAX_HOSTS:
            raise ValueError(f"hostlist {hostlist!r}: more than {MAX_HOSTS} hosts")
        numbers.extend(f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1))
    return numbers
