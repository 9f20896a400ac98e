"""The environment that Slurm commands get.

A shell inside an allocation, or a notebook that runs as a job, carries variables that Slurm's
commands take for options: ``SLURM_CPU_BIND`` or ``SLURM_MEM_PER_NODE`` of the outer job would
silently shape the inner one, and sbatch hands them on to the job.
"""

from __future__ import annotations

from collections.abc import Mapping

_DROPPED_PREFIXES = (
    "SLURM_",
    "SLURMD_",
    "SBATCH_",
    "SALLOC_",
    "SRUN_",
    "SQUEUE_",
    "SACCT_",
    "SCANCEL_",
    "SCONTROL_",
    "SINFO_",
    "PMI_",
    "PMI2_",
    "PMIX_",
)
# Where Slurm is and who one is there; not about any job.
_KEPT = frozenset({"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT"})

# For commands whose answers hold times.
TIME_ZONE = {"TZ": "UTC0"}

# Of the job's own variables, those that srun reads as options. The job's ids and node lists stay:
# srun finds its allocation by them.
_STEP_OPTIONS = frozenset(
    {
        "SLURM_CPUS_PER_TASK",
        "SLURM_DISTRIBUTION",
        "SLURM_EXACT",
        "SLURM_EXCLUSIVE",
        "SLURM_EXPORT_ENV",
        "SLURM_GPUS",
        "SLURM_GPUS_PER_NODE",
        "SLURM_GPUS_PER_SOCKET",
        "SLURM_GPUS_PER_TASK",
        "SLURM_GPU_BIND",
        "SLURM_GPU_FREQ",
        "SLURM_GRES",
        "SLURM_HINT",
        "SLURM_KILL_BAD_EXIT",
        "SLURM_LABELIO",
        "SLURM_MEM_PER_CPU",
        "SLURM_MEM_PER_GPU",
        "SLURM_MEM_PER_NODE",
        "SLURM_MPI_TYPE",
        "SLURM_MULTI_PROG",
        "SLURM_NO_KILL",
        "SLURM_NPROCS",
        "SLURM_NTASKS",
        "SLURM_NTASKS_PER_CORE",
        "SLURM_NTASKS_PER_GPU",
        "SLURM_NTASKS_PER_NODE",
        "SLURM_NTASKS_PER_SOCKET",
        "SLURM_OVERCOMMIT",
        "SLURM_OVERLAP",
        "SLURM_RELATIVE",
        "SLURM_RESV_PORTS",
        "SLURM_STDERRMODE",
        "SLURM_STDINMODE",
        "SLURM_STDOUTMODE",
        "SLURM_STEP_GRES",
        "SLURM_THREADS",
        "SLURM_THREADS_PER_CORE",
        "SLURM_TIMELIMIT",
        "SLURM_TRES_PER_TASK",
        "SLURM_UNBUFFEREDIO",
        "SLURM_WAIT",
        "SLURM_WCKEY",
        "SLURM_WHOLE",
        "SLURM_WORKING_DIR",
    }
)
_STEP_PREFIXES = ("SLURM_CPU_BIND", "SLURM_MEM_BIND", "SLURM_DIST_", "SRUN_", "PMI_", "PMIX_")


def outside(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for a command that has nothing to do with a job we may be in."""
    clean = {
        name: value
        for name, value in environ.items()
        if name in _KEPT or not name.startswith(_DROPPED_PREFIXES)
    }
    clean["SLURM_TIME_FORMAT"] = "standard"
    return clean


def for_steps(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for ``srun`` in a job: the job stays, options by variable go."""
    clean = {
        name: value
        for name, value in environ.items()
        if name not in _STEP_OPTIONS and not name.startswith(_STEP_PREFIXES)
    }
    clean["SLURM_TIME_FORMAT"] = "standard"
    return clean
