"""Trees that were recorded on hosts (/sys, /proc and what else there is), examined as the hosts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from exaslurm.core.checks import NodeChecks, NodeNeeds
from exaslurm.errors import UserError
from exaslurm.preflight import node, software
from exaslurm.preflight.host import Host


def examine_trees(roots: Sequence[Path], needs: NodeNeeds, python: str) -> list[NodeChecks]:
    """One report per tree; a tree's directory is named as its host is."""
    return [_examine(root, needs, python) for root in roots]


def _examine(root: Path, needs: NodeNeeds, python: str) -> NodeChecks:
    if not (root / "sys").is_dir() and not (root / "proc").is_dir():
        raise UserError(
            f"{root} is no recorded tree: it has neither sys nor proc",
            remedy="give the directory below which a copy of /sys and /proc lies",
        )
    host = Host(name=root.resolve().name, root=root.resolve(), recorded=True, environ={})
    version = software.recorded_version(host, python)
    versions = {"python": version} if version else None
    return node.examine(needs, host, versions=versions, python=python)
