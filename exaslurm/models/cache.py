"""Ready model directories in a cache that all nodes share, each made once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from exaslurm.core import codec
from exaslurm.core.plan import ModelSource
from exaslurm.errors import ModelError
from exaslurm.models import convert, lock, manifest
from exaslurm.models.locate import Located, locate

# Part of every key: raise it when the same source gives another directory.
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedModel:
    """A directory that an engine can load.

    ``sha256`` is that of the directory (``manifest.tree_sha256``), or None where a user's own
    directory without a manifest is used in place. ``seconds`` is how long it took to get.
    """

    path: str
    sha256: str | None
    seconds: float


def prepare(
    source: ModelSource,
    cache: Path,
    *,
    dtype: convert.Dtype = "bfloat16",
    verify: bool = False,
    timeout_s: float = 1800.0,
) -> PreparedModel:
    """Make (or find) the ready directory of a source; several processes and nodes may ask at once.

    ``dtype`` is what a GGUF file is converted to. With ``verify`` all checksums are compared, not
    just sizes; a damaged directory in the cache is made again. ``source.sha256``, if given, must
    be that of the source as found: of the file, or of the directory as in
    ``manifest.tree_sha256``. ``timeout_s`` limits the wait for another process that makes it.
    """
    started = time.monotonic()
    located = locate(source)
    if located.in_place:
        assert located.path is not None
        digest = _check_in_place(source, located.path, verify=verify)
        return PreparedModel(
            path=str(located.path), sha256=digest, seconds=round(time.monotonic() - started, 3)
        )
    entry = cache / _entry_name(source, located, dtype)
    made = _usable(entry, verify=verify)
    if made is None:
        _make_cache(cache)
        deadline = started + timeout_s
        lock_path = entry.with_name(f"{entry.name}.lock")
        with lock.hold(lock_path, timeout_s=deadline - time.monotonic()) as token:
            # NFS remembers for up to a minute that a name was not there; listing forgets that.
            os.listdir(cache)
            made = _usable(entry, verify=verify) or _make(entry, token, source, located, dtype)
    return PreparedModel(
        path=str(entry), sha256=made.sha256, seconds=round(time.monotonic() - started, 3)
    )


def _entry_name(source: ModelSource, located: Located, dtype: convert.Dtype) -> str:
    """A readable name, and a hash of all that the content depends on."""
    parts = [_FORMAT, source.kind, source.value, located.form, located.version, source.sha256]
    if located.form == "gguf":
        parts.append(dtype)
    key = hashlib.sha256(codec.dumps(parts).encode()).hexdigest()[:16]
    tail = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(source.value).name)[-48:].strip("-.")
    return f"{tail or 'model'}-{key}"


def _usable(entry: Path, *, verify: bool) -> manifest.Manifest | None:
    """The manifest of an entry that is whole; None if there is none or it is damaged."""
    if not entry.is_dir():
        return None
    try:
        found = manifest.read(entry)
        manifest.check(entry, found, hashes=verify)
    except ModelError:
        return None
    return found


def _make(
    entry: Path, token: str, source: ModelSource, located: Located, dtype: convert.Dtype
) -> manifest.Manifest:
    """Build the entry beside its place and rename it there. The caller holds the lock."""
    building = entry.with_name(f".{entry.name}.{token}")
    leftover = entry.with_name(f".{entry.name}.partial")
    try:
        if entry.exists():  # damaged
            entry.rename(building)
            shutil.rmtree(building)
        _clear_leftovers(entry, keep=leftover)
        if located.form == "hub" and leftover.exists():
            leftover.rename(building)
        building.mkdir(exist_ok=True)
        made_by = _build(source, located, building, dtype)
        _open_to_readers(building)
        made = manifest.write(building, source, made_by)
        if located.form == "hub" and source.sha256 not in (None, made.sha256):
            raise _wrong_sum(source, made.sha256)
        with contextlib.suppress(OSError):
            building.rename(entry)
    except OSError as error:
        raise ModelError(f"cannot write to the model cache {entry.parent}") from error
    except BaseException:
        _put_aside(building, leftover if located.form == "hub" else None)
        raise
    if building.exists():
        # Our lock was taken for stale, and another process was first. Its directory is as good.
        shutil.rmtree(building, ignore_errors=True)
        return manifest.read(entry)
    return made


def _build(
    source: ModelSource, located: Located, directory: Path, dtype: convert.Dtype
) -> dict[str, str]:
    if located.path is None:
        return convert.from_hub(source.value, located.version, directory)
    if source.sha256 is not None:
        found = _source_sum(located.path)
        if found != source.sha256:
            raise _wrong_sum(source, found)
    if located.form == "gguf":
        return convert.from_gguf(located.path, directory, dtype)
    return convert.from_directory(located.path, directory)


def _check_in_place(source: ModelSource, path: Path, *, verify: bool) -> str | None:
    """The checksum of a user's own directory, if it is known or asked for."""
    if (path / manifest.MANIFEST_NAME).is_file() and source.sha256 is None:
        found = manifest.read(path)
        manifest.check(path, found, hashes=verify)
        return found.sha256
    if source.sha256 is None and not verify:
        return None  # reading all weights once more would double the time to load them
    digest = _source_sum(path)
    if source.sha256 not in (None, digest):
        raise _wrong_sum(source, digest)
    return digest


def _source_sum(path: Path) -> str:
    if path.is_dir():
        return manifest.tree_sha256(manifest.scan(path))
    return manifest.file_sha256(path)


def _wrong_sum(source: ModelSource, found: str) -> ModelError:
    return ModelError(
        f"the {source.kind} {source.value} has the checksum {found}, not {source.sha256}",
        remedy="the weights are not the ones that the spec names: fetch them again, or correct "
        "the sha256 in the spec",
    )


def _make_cache(cache: Path) -> None:
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(
            f"cannot make the model cache {cache}",
            remedy="set storage.shared in the site config to a directory that its users can write",
        ) from error


def _open_to_readers(directory: Path) -> None:
    """Give all files the usual mode: some libraries write 0600, which shuts a group out."""
    umask = os.umask(0)
    os.umask(umask)
    for path in directory.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)


def _clear_leftovers(entry: Path, *, keep: Path) -> None:
    """Remove what builders left that were killed: nobody else builds while we hold the lock."""
    for path in entry.parent.glob(f".{entry.name}.*"):
        if path != keep:
            shutil.rmtree(path, ignore_errors=True)


def _put_aside(building: Path, keep_as: Path | None) -> None:
    """Keep a download that broke off for the next attempt; remove anything else."""
    if keep_as is not None and building.exists():
        with contextlib.suppress(OSError):
            building.rename(keep_as)
    shutil.rmtree(building, ignore_errors=True)
