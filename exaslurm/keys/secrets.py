"""The deployment's own secrets: made once, 0600, never in an argument list or a log.

The internal key is what routers, agents, controllers and engines of one deployment show each
other; the Ray token is what ``RAY_AUTH_TOKEN_PATH`` points to.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from exaslurm.errors import StateError
from exaslurm.rundir import RunDir
from exaslurm.util.files import create_once, make_private_dir, open_regular, state_error

SECRET_BYTES = 32
_MAX_SECRET_BYTES = 4096


def ensure_secrets(run_dir: RunDir) -> None:
    """Make the internal key and the Ray token of a deployment unless they exist.

    Several processes may call this at once: all of them end up with the same secrets.
    """
    make_private_dir(run_dir.keys)
    for path in (run_dir.internal_key, run_dir.ray_token):
        if not path.exists():
            create_once(path, secrets.token_urlsafe(SECRET_BYTES))


def read_secret(path: Path) -> str:
    """The secret, one word, in a file that nobody but its owner may read; StateError otherwise."""
    raw = read_private(path, limit=_MAX_SECRET_BYTES)
    try:
        text = raw.decode("ascii").strip()
    except UnicodeDecodeError:
        text = ""
    if not text or not text.isprintable() or " " in text:  # it could be nobody's key, or two
        raise StateError(
            f"{path} does not hold a secret",
            remedy="write the key alone into it; if it is a deployment's own, remove it and submit",
        )
    return text


def read_private(path: Path, *, limit: int) -> bytes:
    """At most ``limit`` bytes of a file that must be private to its owner.

    The mode is checked on the open file, so it cannot be another file than the one read.
    """
    try:
        with open_regular(path, os.O_NOFOLLOW) as file:
            info = os.fstat(file.fileno())
            if info.st_mode & 0o077:
                raise StateError(
                    f"{path} can be used by others (mode {stat.S_IMODE(info.st_mode):04o})",
                    remedy=f"chmod 600 {path}, and make new keys if somebody may have read it",
                )
            return file.read(limit)
    except OSError as error:
        raise state_error("read", path, error) from error
