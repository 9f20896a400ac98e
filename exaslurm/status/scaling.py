"""Which cells are wanted now, and how many replicas of each."""

from __future__ import annotations

from collections.abc import Mapping

from exaslurm.core import codec
from exaslurm.core.plan import CellPlan, Plan
from exaslurm.core.scale import Scale
from exaslurm.core.sharing import Counts, at_start, share
from exaslurm.rundir import RunDir
from exaslurm.util.files import read_text


def wanted_cells(run_dir: RunDir, plan: Plan) -> dict[str, Counts | None]:
    """By name of each cell that is wanted, how many replicas of each shard (None: all that are
    planned). StateError if it cannot be read."""
    scale = at_start(plan)
    if run_dir.scale.exists():
        scale = codec.loads(Scale, read_text(run_dir.scale), where=str(run_dir.scale))
    # Where they are as the supervisor has divided them, they stay.
    return share(plan, scale, frozenset(scale.cells if scale is not None else ()))


def wanted_replicas(cell: CellPlan, wanted: Mapping[str, Counts | None], name: str) -> int:
    """How many replicas a cell shall run."""
    planned = sum(item.count for item in cell.replica_sets)
    if name not in wanted:
        return 0
    counts = wanted[name]
    return planned if counts is None else min(planned, sum(counts.values()))


def why_none(plan: Plan) -> str:
    """What it means that no cell is wanted."""
    if plan.autoscale is not None and plan.autoscale.idle_s is not None:
        return "no replica runs, since nobody asks; the first request starts one, and waits for it"
    return "no replica is wanted: 'exaslurm scale' says how many"
