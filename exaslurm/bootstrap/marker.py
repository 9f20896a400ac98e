"""The file that says: bootstrap runs here, by this plan."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping

from exaslurm.bootstrap.allocation import Allocation
from exaslurm.core.codec import dumps
from exaslurm.core.marker import BootstrapMarker
from exaslurm.core.plan import Plan
from exaslurm.rundir import GenerationDir
from exaslurm.util.files import write_atomic


def make_marker(
    plan: Plan,
    cell: str,
    allocation: Allocation,
    *,
    started_s: float,
    switches: Mapping[str, tuple[str, ...]] | None = None,
    features: Mapping[str, tuple[str, ...]] | None = None,
) -> BootstrapMarker:
    """The marker of a job that starts now."""
    return BootstrapMarker(
        plan_hash=plan.hash,
        deployment=plan.deployment,
        cell=cell,
        job_id=allocation.job_id,
        job_name=allocation.job_name,
        het_job_ids={str(c.het_group): c.job_id for c in allocation.components},
        nodes={str(c.het_group): c.nodes for c in allocation.components},
        host=socket.gethostname(),
        started_s=started_s,
        job_start_s=allocation.start_s,
        switches=switches or {},
        features=features or {},
    )


def begin(gen_dir: GenerationDir, marker: BootstrapMarker) -> None:
    """Write the marker, and remove what an earlier job of this cell left beside it: its binding
    names nodes and ports that are not this job's."""
    for path in (
        gen_dir.binding(marker.cell),
        gen_dir.controller_memory(marker.cell),
        gen_dir.failure(marker.cell),
        gen_dir.ended(marker.cell),
        gen_dir.notice(marker.cell),
    ):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
    write_atomic(gen_dir.bootstrap_marker(marker.cell), dumps(marker, indent=2))
