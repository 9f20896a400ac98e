"""Files of the run directory: whole or not at all, and private."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import stat
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO

from exaslurm.errors import StateError, TakenOver

PRIVATE_FILE = 0o600
PRIVATE_DIR = 0o700

# Where files below a directory are made before they are moved into place; see ``staging``.
_staged: ContextVar[tuple[Path, Path] | None] = ContextVar("staged", default=None)

_REMEDIES = {
    errno.ENOSPC: "free some space there, or set EXASLURM_HOME to a directory with room",
    errno.EDQUOT: "your quota is used up: free some space, or set EXASLURM_HOME elsewhere",
    errno.EACCES: "set EXASLURM_HOME to a directory that you may write to",
    errno.EPERM: "set EXASLURM_HOME to a directory that you may write to",
    errno.EROFS: "the file system is read-only here: set EXASLURM_HOME to another directory",
}
_READ_REMEDIES = {
    errno.EACCES: "only its owner may use it; if that is you, its mode or that of a directory "
    "above was changed",
    errno.EISDIR: "a directory is in the place of a file: move it away",
}


def state_error(action: str, path: Path, error: OSError) -> StateError:
    """A StateError that names the path and, where the reason is a common one, the remedy."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    remedies = _READ_REMEDIES if action == "read" else _REMEDIES
    return StateError(f"cannot {action} {path}: {reason}", remedy=remedies.get(error.errno or 0))


def make_private_dir(path: Path) -> None:
    """Make a directory (and its parents), readable by its owner only."""
    try:
        path.mkdir(mode=PRIVATE_DIR, parents=True, exist_ok=True)
        if path.stat().st_mode & 0o077:
            path.chmod(PRIVATE_DIR)
    except OSError as error:
        raise state_error("make directory", path, error) from error


@contextlib.contextmanager
def staging(root: Path, stage: Path) -> Iterator[None]:
    """In this context ``write_atomic`` makes files below ``root`` in the directory ``stage``, on
    the same file system, before it moves them into place. So whoever removes ``stage`` keeps this
    process from replacing any of them: from then on that is a TakenOver."""
    token = _staged.set((root, stage))
    try:
        yield
    finally:
        _staged.reset(token)


def write_atomic(path: Path, data: str | bytes, *, mode: int = PRIVATE_FILE) -> None:
    """Replace a file by rename, so that a reader sees the old or the new one, never half.

    The data is on disk before the name is: a full disk is an error here, not an empty file.
    """
    raw = data.encode() if isinstance(data, str) else data
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    stage = _stage_of(path)
    if stage is not None:
        temporary = stage / temporary.name
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE) and stage and not stage.is_dir():
            raise TakenOver(
                f"another process has taken over: {path} is not written any more"
            ) from error
        raise state_error("write", path, error) from error


def _stage_of(path: Path) -> Path | None:
    """Where a file is to be made that goes to this path; None: beside it."""
    root, stage = _staged.get() or (None, None)
    return stage if root is not None and path.is_relative_to(root) else None


def create_once(path: Path, data: str | bytes, *, mode: int = PRIVATE_FILE) -> bool:
    """Create a file with this content unless it exists; true if this call created it.

    Of several callers exactly one wins, on NFS too: the content is linked into place.
    """
    raw = data.encode() if isinstance(data, str) else data
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path)
            return True
        except FileExistsError:
            return False
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
    except OSError as error:
        raise state_error("create", path, error) from error


def open_regular(path: Path, flags: int = 0) -> BinaryIO:
    """Open a file to read; OSError if it cannot be, StateError if it is a pipe or a device, which
    could keep its reader waiting. ``flags``: further ones of ``os.open``."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise StateError(f"cannot read {path}: it is no regular file")
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def open_at_once(path: Path) -> BinaryIO:
    """Open a file to read, or a pipe (``<(command)``), but without waiting for somebody who will
    write into it; OSError if it cannot be."""
    file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115 - the caller closes it
    os.set_blocking(file.fileno(), True)
    return file


def is_there(path: Path) -> bool:
    """Whether there is such a file, in a directory that is there. StateError without the directory:
    a file system that is away (unmounted) says nothing of its files."""
    try:
        path.stat()
        return True
    except FileNotFoundError:
        pass
    except OSError as error:
        raise state_error("read", path, error) from error
    if os.path.isdir(path.parent):
        return False
    raise StateError(f"cannot read {path}: there is no {path.parent} (is its file system mounted?)")


def read_text(path: Path) -> str:
    """The text of a file; StateError (with the path) if it cannot be read, or is no text."""
    try:
        with io.TextIOWrapper(open_regular(path), encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise state_error("read", path, error) from error
    except UnicodeDecodeError as error:
        raise StateError(f"{path} is damaged: not text (byte {error.start})") from error


def append_line(path: Path, line: str) -> None:
    """Append one line; short lines of several writers do not mix (O_APPEND). What a full disk has
    cut off is a line of its own."""
    raw = line.rstrip("\n").encode() + b"\n"
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(path, flags, PRIVATE_FILE)
        try:
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                raw = b"\n" + raw
            if os.write(fd, raw) != len(raw):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(fd)
    except OSError as error:
        raise state_error("append to", path, error) from error


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
