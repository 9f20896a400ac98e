"""Nodes that a submission does without, because an earlier job could not use them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from exaslurm.core.codec import loads
from exaslurm.core.exclusion import ExcludedNode, ExcludedNodes
from exaslurm.core.plan import CellPlan
from exaslurm.errors import StateError
from exaslurm.rundir import RunDir
from exaslurm.util.files import read_text
from exaslurm.util.hostlist import expand


def excluded_nodes(run_dir: RunDir, now_s: float) -> tuple[ExcludedNode, ...]:
    """What any cell of the deployment found out and is still to be heeded, by name. A file that
    cannot be read says nothing: the preflight will find the node again."""
    found: dict[str, ExcludedNode] = {}
    try:
        paths = sorted(run_dir.excluded_nodes.glob("[!.]*.json"))
    except OSError:
        return ()
    for path in paths:
        with contextlib.suppress(StateError):
            for item in loads(ExcludedNodes, read_text(path), where=str(path)).current(now_s):
                known = found.get(item.node)
                if known is None or item.until_s > known.until_s:
                    found[item.node] = item
    return tuple(found[name] for name in sorted(found))


def exclude_option(cell: CellPlan, nodes: Sequence[ExcludedNode]) -> tuple[str, ...]:
    """sbatch's option; empty where there is nothing to exclude.

    Given on the command line it replaces those of the script, so the script's own are in it; later
    components inherit it (https://slurm.schedmd.com/heterogeneous_jobs.html).
    """
    if not nodes:
        return ()
    names = {item.node for item in nodes}
    for component in cell.components:
        for option, value in component.directives:
            if option == "exclude" and value:
                try:
                    names.update(expand(value))
                except ValueError:
                    names.add(value)
    return (f"--exclude={','.join(sorted(names))}",)
