"""What Slurm granted, read from the batch script's environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from exaslurm.core.plan import CellPlan, Plan
from exaslurm.errors import AllocationError
from exaslurm.util.hostlist import expand


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One component of the job. ``job_id`` is what Slurm says it is, never leader + n."""

    het_group: int
    job_id: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The job of one cell; ``job_id`` is the leader's."""

    job_id: str
    job_name: str
    components: tuple[Component, ...]
    start_s: float | None

    @property
    def head(self) -> str:
        """The node that runs the batch script: the first of component 0."""
        return self.components[0].nodes[0]


def read_allocation(environ: Mapping[str, str]) -> Allocation:
    """The allocation that ``environ`` describes.

    Names of variables: https://slurm.schedmd.com/heterogeneous_jobs.html (``_HET_GROUP_n`` since
    20.02). Raises AllocationError outside a job.
    """
    job_id = environ.get("SLURM_JOB_ID", "")
    if not job_id.isdigit():
        raise AllocationError(
            "this is not a Slurm job: SLURM_JOB_ID is not set",
            remedy="submit the script with sbatch, or with `exaslurm submit`",
        )
    size = environ.get("SLURM_HET_SIZE", "")
    components = []
    if size.isdigit() and int(size) > 0:
        for group in range(int(size)):
            component_id = _need(environ, f"SLURM_JOB_ID_HET_GROUP_{group}")
            nodes = _need(environ, f"SLURM_JOB_NODELIST_HET_GROUP_{group}")
            components.append(Component(het_group=group, job_id=component_id, nodes=_names(nodes)))
    else:
        nodes = environ.get("SLURM_JOB_NODELIST") or _need(environ, "SLURM_NODELIST")
        components.append(Component(het_group=0, job_id=job_id, nodes=_names(nodes)))
    start = environ.get("SLURM_JOB_START_TIME", "")
    return Allocation(
        job_id=job_id,
        job_name=environ.get("SLURM_JOB_NAME", ""),
        components=tuple(components),
        start_s=float(start) if start.isdigit() else None,
    )


def check_allocation(plan: Plan, cell: CellPlan, allocation: Allocation) -> list[str]:
    """Compare what was granted with the plan.

    Raises AllocationError where the cell cannot run; returns sentences about what is less than
    planned but enough.
    """
    planned, granted = len(cell.components), len(allocation.components)
    if planned != granted:
        raise AllocationError(
            f"job {allocation.job_id} has {granted} component(s), the plan's cell {cell.name} "
            f"has {planned} (layout {plan.layout!r})",
            remedy="submit the rendered script unchanged; where the site has no heterogeneous "
            "jobs, say `hetjobs: false` in its site config",
        )
    notes = []
    for component, found in zip(cell.components, allocation.components, strict=True):
        have = len(found.nodes)
        if have < component.min_nodes:
            raise AllocationError(
                f"component {component.het_group} of job {allocation.job_id} has {have} node(s) "
                f"({','.join(found.nodes)}), fewer than the {component.min_nodes} it needs",
                remedy="submit the rendered script unchanged, or lower workers.min_nodes",
            )
        if have != component.nodes:
            notes.append(
                f"component {component.het_group} has {have} node(s), planned were "
                f"{component.nodes}"
            )
    return notes


def _names(nodelist: str) -> tuple[str, ...]:
    try:
        return tuple(expand(nodelist))
    except ValueError as error:
        raise AllocationError("Slurm's list of nodes is not understood") from error


def _need(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name)
    if not value:
        raise AllocationError(
            f"Slurm did not set {name} in the batch script's environment",
            remedy="do not unset SLURM_* variables in a prologue; `exaslurm doctor` shows "
            "whether this Slurm has heterogeneous jobs",
        )
    return value
