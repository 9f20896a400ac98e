"""The argv of the one long step of a component. Run it with ``environ.for_steps``."""

from __future__ import annotations

from collections.abc import Sequence

from exaslurm.core.plan import ComponentPlan


def step_argv(
    component: ComponentPlan,
    command: Sequence[str],
    *,
    het: bool,
    output: str,
    nodes: int | None = None,
    extra: Sequence[str] = (),
) -> list[str]:
    """``srun`` of one task per node of a component, which lives as long as the job.

    ``het``: the job has components (then this one's step must name it). ``output`` is a file
    pattern of srun's (``%N``: node). ``nodes`` where Slurm granted another number than planned.
    ``extra`` are the site's own options (``plan.srun_args``).
    """
    count = component.nodes if nodes is None else nodes
    return [
        "srun",
        *([f"--het-group={component.het_group}"] if het else []),
        f"--nodes={count}",
        # Always said: an overlapping step without it takes every task of the job (LUMI).
        f"--ntasks={count}",
        "--ntasks-per-node=1",
        # Always said: srun 22.05 to 23.02 does not inherit it from the job.
        f"--cpus-per-task={component.cpus_per_node}",
        # The step shares CPUs, memory and GPUs with other steps: users may look in with srun.
        "--overlap",
        # Binding is done per replica on the node; a step bound to fewer CPUs could not.
        "--cpu-bind=none",
        "--mpi=none",
        # A lost node, a failed or an ended task are no reason to end the others.
        "--no-kill",
        "--kill-on-bad-exit=0",
        "--wait=0",
        # Said, as a job that was submitted with --export=NONE makes its steps inherit that.
        "--export=ALL",
        "--input=none",
        f"--output={output}",
        *extra,
        *command,
    ]
