from __future__ import annotations

from exaslurm.slurm.environ import for_steps, outside

# From a batch script of Slurm 22.05 in which somebody works: ids, options and bindings.
POLLUTED = {
    "HOME": "/home/ada",
    "PATH": "/usr/bin",
    "SLURM_CONF": "/etc/slurm/slurm.conf",
    "SLURM_CLUSTERS": "alpha",
    "SLURM_JOB_ID": "17",
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "c[3-4]",
    "SLURM_MEM_PER_NODE": "1024",
    "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
    "SLURM_CPU_BIND_LIST": "0x1",
    "SLURM_NTASKS": "1",
    "SLURM_EXPORT_ENV": "NONE",
    "SLURM_TIME_FORMAT": "relative",
    "SBATCH_PARTITION": "debug",
    "SQUEUE_FORMAT": "%A",
    "SALLOC_ACCOUNT": "x",
    "SRUN_CPUS_PER_TASK": "1",
    "SCANCEL_USER": "ada",
    "SACCT_FEDERATION": "1",
    "PMIX_RANK": "0",
    "PMI_RANK": "0",
}


def test_outside_keeps_where_slurm_is_and_drops_the_job() -> None:
    assert outside(POLLUTED) == {
        "HOME": "/home/ada",
        "PATH": "/usr/bin",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "SLURM_CLUSTERS": "alpha",
        "SLURM_TIME_FORMAT": "standard",
    }


def test_steps_find_their_job_but_take_no_options_from_it() -> None:
    kept = for_steps(POLLUTED)
    assert kept["SLURM_JOB_ID"] == "17"
    assert kept["SLURM_HET_SIZE"] == "2"
    assert kept["SLURM_JOB_NODELIST_HET_GROUP_1"] == "c[3-4]"
    gone = {name for name in POLLUTED if name not in kept}
    assert gone >= {
        "SLURM_MEM_PER_NODE",
        "SLURM_CPU_BIND",
        "SLURM_CPU_BIND_LIST",
        "SLURM_NTASKS",
        "SLURM_EXPORT_ENV",
        "SRUN_CPUS_PER_TASK",
        "PMIX_RANK",
    }
