"""Directories of a site for one user."""

from __future__ import annotations

import re

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


class UnknownVariableError(ValueError):
    """A path uses a shell variable that is not understood."""


def resolve(text: str, *, user: str, home: str) -> str:
    """``text`` with ~, $HOME and $USER replaced; UnknownVariableError for any other variable."""

    def value(match: re.Match[str]) -> str:
        name = match.group(1) or match.group(2)
        known = {"HOME": home, "USER": user}
        if name not in known:
            raise UnknownVariableError(f"only $HOME and $USER are understood, not ${name}")
        return known[name]

    if text == "~" or text.startswith("~/"):
        text = home + text[1:]
    return _VARIABLE.sub(value, text)
