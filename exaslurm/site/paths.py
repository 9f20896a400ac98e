"""Directories of a site for one user."""

from __future__ import annotations

import re
from collections.abc import Mapping

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


class UnknownVariableError(ValueError):
    """A path uses a shell variable that is not understood, or that is not set."""


def resolve(
    text: str, *, user: str, home: str, variables: Mapping[str, str | None] | None = None
) -> str:
    """``text`` with ~, $HOME, $USER and ``variables`` replaced; UnknownVariableError for any other
    variable, and for one of these that has no value (None)."""
    known = {"HOME": home, "USER": user, **(variables or {})}

    def value(match: re.Match[str]) -> str:
        name = match.group(1) or match.group(2)
        if name not in known:
            raise UnknownVariableError(f"only {_listed(known)} are understood, not ${name}")
        found = known[name]
        if not found:
            raise UnknownVariableError(f"${name} has no value")
        return found

    if text == "~" or text.startswith("~/"):
        text = home + text[1:]
    return _VARIABLE.sub(value, text)


def _listed(names: Mapping[str, str | None]) -> str:
    *first, last = [f"${name}" for name in names]
    return f"{', '.join(first)} and {last}"
