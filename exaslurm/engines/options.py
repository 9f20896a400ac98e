"""The options that the installed engine really has.

vLLM adds and removes options with every release. An unknown one ends the engine after many seconds
of imports, on every replica, again and again; asked beforehand, it is one clear sentence.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

_OPTION_LINE = re.compile(r"^  (?:-|--)[A-Za-z]")
_LONG = re.compile(r"--[A-Za-z0-9][A-Za-z0-9-]*")


def known_options(help_text: str) -> frozenset[str]:
    """Long options that ``vllm serve --help=all`` (argparse's layout) lists."""
    found: set[str] = set()
    for line in help_text.splitlines():
        if _OPTION_LINE.match(line):
            # The description follows after two blanks or more, and may name other options.
            heads = re.split(r"\s{2,}", line.strip())[0]
            found.update(_LONG.findall(heads))
    return frozenset(found)


def long_options(argv: Iterable[str]) -> list[str]:
    """Long options in an argument list, in vLLM's own spelling: ``--a_b.c=1`` is ``--a-b``."""
    found = []
    for argument in argv:
        if argument == "--":
            break
        if re.match(r"--[A-Za-z]", argument):
            name = re.split(r"[=.]", argument, maxsplit=1)[0]
            found.append(name.replace("_", "-"))
    return found


def complaint(argv: Sequence[str], known: frozenset[str], version: str) -> str | None:
    """A sentence about the first option that the engine does not have; None if it has them all."""
    for option in long_options(argv):
        if option not in known:
            near = difflib.get_close_matches(option, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            return f"vLLM {version} has no option {option}{hint}"
    return None
