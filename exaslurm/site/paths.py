"""Directories of a site for one user."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping

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


def user_and_home(environ: Mapping[str, str]) -> tuple[str, str]:
    """Name and home directory of the user, from the environment, else from the system."""
    user, home = environ.get("USER") or environ.get("LOGNAME"), environ.get("HOME")
    if user and home:
        return user, home
    try:
        entry = pwd.getpwuid(os.getuid())
    except KeyError:  # a container without an entry for the user
        return user or str(os.getuid()), home or "/"
    return user or entry.pw_name, home or entry.pw_dir
