"""exaslurm: a Slurm-native launcher for LLM serving on HPC clusters.

``import exaslurm`` stays light: names below load their module on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exaslurm.api.deployment import Deployment
    from exaslurm.errors import ExaslurmError

__version__ = "0.1.0"
__all__ = ["Deployment", "ExaslurmError", "__version__"]

_LAZY = {"Deployment": "exaslurm.api.deployment", "ExaslurmError": "exaslurm.errors"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
