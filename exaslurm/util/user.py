"""Who runs this, and where their directories are."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path


def user_and_home(environ: Mapping[str, str]) -> tuple[str, str]:
    """Name and home directory (absolute) of the user, from the environment, else from the
    system: batch jobs, containers and systemd units may lack either variable."""
    user, home = environ.get("USER") or environ.get("LOGNAME"), environ.get("HOME")
    if not user or not home:
        try:
            entry = pwd.getpwuid(os.getuid())
        except KeyError:  # a container without an entry for the user
            user, home = user or str(os.getuid()), home or "/"
        else:
            user, home = user or entry.pw_name, home or entry.pw_dir
    return user, os.path.abspath(home)


def config_dir(environ: Mapping[str, str]) -> Path:
    """The user's directory for configuration (XDG)."""
    given = environ.get("XDG_CONFIG_HOME")
    return Path(given) if given else Path(user_and_home(environ)[1]) / ".config"
