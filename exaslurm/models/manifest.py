"""What files a model directory holds, with their checksums."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from exaslurm.core import codec
from exaslurm.core.plan import ModelSource
from exaslurm.errors import ModelError, StateError
from exaslurm.util.files import read_text, write_atomic

MANIFEST_NAME = "MANIFEST.json"
MANIFEST_SCHEMA: Literal["exaslurm/model/1"] = "exaslurm/model/1"
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSum:
    """Size and SHA-256 (hex) of one file."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of a model directory.

    ``files`` is keyed by path relative to the directory; ``sha256`` is ``tree_sha256(files)``;
    ``source`` is what it was made from, ``made_by`` the versions of the programs that made it.
    """

    schema: Literal["exaslurm/model/1"] = MANIFEST_SCHEMA
    source: ModelSource
    sha256: str
    files: Mapping[str, FileSum]
    made_by: Mapping[str, str] = field(default_factory=dict)


def file_sha256(path: Path) -> str:
    """SHA-256 (hex) of a file; ModelError if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
    except OSError as error:
        raise ModelError(f"cannot read {path}") from error
    return digest.hexdigest()


def tree_sha256(files: Mapping[str, FileSum]) -> str:
    """SHA-256 (hex) of a directory: of what ``sha256sum`` prints for its files, sorted by name.

    ``find . -type f -printf '%P\\n' | LC_ALL=C sort | xargs -d '\\n' sha256sum | sha256sum`` gives
    the same for a directory without a manifest.
    """
    lines = (f"{files[name].sha256}  {name}\n" for name in sorted(files, key=str.encode))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def scan(directory: Path) -> dict[str, FileSum]:
    """Sizes and checksums of all files of a model directory but the manifest itself."""
    found = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_file() and name != MANIFEST_NAME:
            found[name] = FileSum(bytes=path.stat().st_size, sha256=file_sha256(path))
    return found


def write(directory: Path, source: ModelSource, made_by: Mapping[str, str]) -> Manifest:
    """Checksum a directory and put the manifest into it."""
    files = scan(directory)
    manifest = Manifest(source=source, sha256=tree_sha256(files), files=files, made_by=made_by)
    write_atomic(directory / MANIFEST_NAME, codec.dumps(manifest, indent=2), mode=0o644)
    return manifest


def read(directory: Path) -> Manifest:
    """The manifest of a directory; ModelError if there is none or it is not readable."""
    path = directory / MANIFEST_NAME
    try:
        return codec.loads(Manifest, read_text(path), where=str(path))
    except StateError as error:
        raise ModelError("the model directory has no usable manifest") from error


def check(directory: Path, manifest: Manifest, *, hashes: bool) -> None:
    """Raise ModelError naming the first file that is not as the manifest says.

    Sizes only, unless ``hashes``: reading all weights again takes as long as loading them.
    """
    for name, expected in manifest.files.items():
        path = directory / name
        try:
            size = path.stat().st_size
        except OSError as error:
            raise ModelError(f"{directory}: {name} is missing") from error
        if size != expected.bytes:
            raise ModelError(f"{path}: {size} bytes, should be {expected.bytes}")
        if hashes and file_sha256(path) != expected.sha256:
            raise ModelError(f"{path}: the checksum is not that of {MANIFEST_NAME}")
