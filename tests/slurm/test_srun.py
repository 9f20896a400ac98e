from __future__ import annotations

from exaslurm.core.plan import ComponentPlan
from exaslurm.slurm.srun import step_argv

WORKERS = ComponentPlan(
    het_group=1,
    role="worker",
    kind="gpu",
    nodes=4,
    min_nodes=4,
    cpus_per_node=16,
    mem_mib_per_node=1024,
    gpus_per_node=4,
    directives=(),
)


def test_step_of_a_component() -> None:
    argv = step_argv(WORKERS, ["python", "-m", "x"], het=True, output="/logs/%N.log", nodes=3)
    assert argv[0] == "srun"
    assert argv[-3:] == ["python", "-m", "x"]
    assert set(argv) >= {
        "--het-group=1",
        "--nodes=3",
        "--ntasks=3",
        "--ntasks-per-node=1",
        "--cpus-per-task=16",
        "--overlap",
        "--cpu-bind=none",
        "--mpi=none",
        "--no-kill",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--export=ALL",
        "--output=/logs/%N.log",
    }


def test_ordinary_job_and_the_sites_own_options() -> None:
    argv = step_argv(WORKERS, ["x"], het=False, output="o", extra=("--network=disable_rdzv_get",))
    assert not any(word.startswith("--het-group") for word in argv)
    assert argv[-2:] == ["--network=disable_rdzv_get", "x"]
