"""The user's private directory on this host, for what processes of one host share: sockets, shared
memory, figures. In memory, gone with the next boot."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from exaslurm.errors import StateError
from exaslurm.util.files import PRIVATE_DIR, state_error

# Not $XDG_RUNTIME_DIR: a shell and a batch job of the same user may differ in it, and would not
# find each other.
_PARENTS = ("/dev/shm", "/tmp")


def host_dir() -> Path:
    """The directory, made if it is not there; StateError if it is not the user's own."""
    parent = next((item for item in _PARENTS if os.access(item, os.W_OK | os.X_OK)), None)
    if parent is None:
        raise StateError(f"neither of {', '.join(_PARENTS)} can be written to")
    path = Path(parent) / f"exaslurm-{os.getuid()}"
    try:
        path.mkdir(mode=PRIVATE_DIR, exist_ok=True)
        info = path.lstat()
    except OSError as error:
        raise state_error("make directory", path, error) from error
    # Everybody may write to the parent, so somebody else may have been there first.
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise StateError(
            f"{path} is not a directory of this user's alone",
            remedy="ask its owner, or an administrator, to remove it",
        )
    return path


def host_name_of(*parts: str) -> str:
    """A short file name for what these words name. Processes that cannot see each other's pids
    (containers) get different ones, since they could not tell whether the other one lives."""
    namespace = os.stat("/proc/self/ns/pid").st_ino
    text = "\0".join((str(namespace), *parts))
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
