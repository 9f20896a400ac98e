"""What the files of a model say about its size, read where they are."""

from __future__ import annotations

import json
from pathlib import Path

from exaslurm.core.plan import ModelSource
from exaslurm.core.shape import ModelShape
from exaslurm.errors import ExaslurmError
from exaslurm.models.locate import locate

_WEIGHTS = ("*.safetensors", "*.bin")
_MAX_CONFIG_BYTES = 4 << 20


def shape_of_directory(directory: Path) -> ModelShape | None:
    """The shape of the model in a directory; None where its ``config.json`` cannot be read."""
    config = directory / "config.json"
    try:
        if config.stat().st_size > _MAX_CONFIG_BYTES:
            return None
        data = json.loads(config.read_text(encoding="utf-8"))
        sizes = [_size(directory, pattern) for pattern in _WEIGHTS]
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    return ModelShape.from_config(data, next((size for size in sizes if size), None))


def shape_of_source(source: ModelSource) -> ModelShape | None:
    """The shape of a model whose files are on this machine; None where they are not (they may
    well be on the nodes), or are of a kind that has no ``config.json``."""
    try:
        found = locate(source)
    except ExaslurmError:
        return None
    if found.form != "directory" or found.path is None:
        return None
    return shape_of_directory(found.path)


def _size(directory: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in directory.glob(pattern))
